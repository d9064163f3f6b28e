"""Replicas on nodes that are being emptied: a replacement serves elsewhere before each of them goes. Pure.

There is one replica more than desired at a time, as in a rollout: a pool of a hundred needs one more device,
and not a hundred. When the extra replica is Ready, the count goes back, and `drain` marks a replica on such a
node first. After that one is gone, the next one is replaced. An extra replica without room waits, and nothing
else happens.

A rollout needs none of this: it makes new pods anyway, and the scheduler puts none of them on such a node.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from millrace_operator.kube.kinds import DEPLOYMENT, POD
from millrace_operator.observed.pods import Pod
from millrace_operator.observed.revisions import Observed
from millrace_operator.rollout.surge import Step


@dataclass(frozen=True, kw_only=True)
class Evacuation:
    """The replicas to replace, and what to do about them now."""

    pods: tuple[Pod, ...] = ()
    """The serving replicas on nodes that are being emptied, by name."""
    departures: Mapping[str, str] | None = None
    """Why each node is being emptied."""
    is_extra_wanted: bool = False
    """Whether there is to be one replica more than desired."""
    holds_last: bool = False
    """Whether the only replica may not be evicted, because its replacement is coming."""
    looks_again_at: float | None = None
    """When that ends by time alone, in seconds since 1970."""
    since: float = 0.0
    """When the first replacement was requested, in seconds since 1970."""

    def add_extra(self, step: Step, revision: str) -> Step:
        """Return the step with one more replica of a revision, if one is wanted."""
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
    since: float | None,
    refused: Container[str],
) -> Evacuation:
    """Return what to do about replicas on nodes that are being emptied.

    A replacement may take `start_seconds` after its creation before a drain goes on without it. Without a
    replacement they count from `since`, the time of the first request; None means now. `refused` are the
    kinds of the objects that the API server refuses: without marks the replacement would leave first, and not
    the replica on the node.
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
