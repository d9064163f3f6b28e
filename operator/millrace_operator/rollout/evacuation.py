"""Replicas on nodes that are being emptied: a replacement serves elsewhere before each of them goes. Pure.

There is one replica more than desired at a time, as in a rollout: a pool with a hundred of them that is
emptied asks for one device more, and not for a hundred. When the extra one is Ready, the count goes back, and
`drain` marks a replica on such a node first. When that one is gone, the next one's turn comes. An extra
replica that finds no room waits, and nothing else happens.

Not in a rollout: it makes new pods anyway, and the scheduler puts none of them on such a node.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from millrace_operator.kube.kinds import DEPLOYMENT, POD
from millrace_operator.observed.pods import Pod
from millrace_operator.observed.revisions import Observed
from millrace_operator.rollout.surge import Step


@dataclass(frozen=True, kw_only=True)
class Evacuation:
    """The replicas that are to be replaced, and what is done about it now."""

    pods: tuple[Pod, ...] = ()
    """They serve on nodes that are being emptied. By name."""
    departures: Mapping[str, str] | None = None
    """Why each node is being emptied."""
    is_extra_wanted: bool = False
    """Whether there is to be one replica more than desired."""
    holds_last: bool = False
    """Whether the only replica may not be evicted, because its replacement is on its way."""
    looks_again_at: float | None = None
    """When time alone ends that, in seconds since 1970."""
    since: float = 0.0
    """When the first of them was to be replaced, in seconds since 1970."""

    def add_extra(self, step: Step, revision: str) -> Step:
        """Return the step with one more replica of a revision, where one is wanted."""
        if not self.is_extra_wanted:
            return step
        return replace(step, counts={**step.counts, revision: step.counts[revision] + 1})

    def describe(self) -> str:
        """Return which replica is replaced, and why."""
        first, num_others = self.pods[0], len(self.pods) - 1
        why = (self.departures or {}).get(first.node, "")
        others = f", and {num_others} more after it" if num_others else ""
        return f"replica {first.name} is replaced, as node {first.node} is being emptied ({why}){others}"


NO_EVACUATION = Evacuation()


def plan_evacuation(
    step: Step,
    revision: str,
    desired: int,
    observed: Observed,
    departures: Mapping[str, str],
    *,
    start_seconds: float,
    since: float | None = None,
    refused: Container[str] = (),
) -> Evacuation:
    """Return what to do about replicas on nodes that are being emptied.

    A replacement may take `start_seconds` from its creation on before a drain goes on without it. Where it is
    not there, they count from `since`, when one was first asked for; None: that is now. `refused` are the
    kinds of what the API server refuses: without marks the replacement would go, and not the replica on the
    node.
    """
    pods = observed.pods_of(revision)
    leaving = tuple(pod for pod in pods if pod.leaves_with(departures) and pod.is_serving)
    if not leaving or desired == 0 or len(step.counts) > 1:
        return NO_EVACUATION
    since = observed.moment.now if since is None else since
    others = [pod for pod in pods if not pod.leaves_with(departures)]
    num_reached = sum(pod.is_reached for pod in pods)
    is_replaced = num_reached > desired or sum(pod.is_reached for pod in others) >= desired
    begun = [pod.created_at for pod in others if not pod.is_ready] or [since]
    starts_by = min(begun) + start_seconds
    has_hope = observed.moment.now < starts_by
    is_blocked = observed.state(revision).lacks_room or bool(observed.failed) or DEPLOYMENT.kind in refused
    holds_last = desired == 1 and has_hope and not is_blocked
    return Evacuation(
        pods=tuple(sorted(leaving, key=lambda pod: pod.name)),
        departures=departures,
        is_extra_wanted=not is_replaced or POD.kind in refused,
        holds_last=holds_last,
        looks_again_at=starts_by if holds_last else None,
        since=since,
    )
