"""The running replicas, by revision. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace_operator.api.conditions import Reason, parse_time
from millrace_operator.kube.kinds import DEPLOYMENT, Obj, ObjectId
from millrace_operator.observed.pod_status import find_condition
from millrace_operator.observed.pods import Pod, read_pod
from millrace_operator.observed.snapshot import PodLoad
from millrace_operator.render.child import revision_name
from millrace_operator.rollout.revision import read_hash
from millrace_operator.rollout.surge import RevisionState
from millrace_operator.status.causes import UNREADY_REASONS, Cause
from millrace_runtime import contract

FAILED_SECONDS = 600.0
"""For so long a failed pod counts as news. A pod that fails repeatedly has younger successors."""
ROUTING_SECONDS = 60.0
"""A Ready pod waits at most so long until all gateways know it. A stuck gateway must not stop rollouts."""
ROUTING_LOOK_SECONDS = 0.5
CLOCK_SECONDS = 5.0
"""A node's clock may be ahead of ours by so much."""
LOST_SECONDS = 30.0
"""A pod that is being deleted counts as gone after its grace and this time, because its node may be lost."""


@dataclass(frozen=True)
class Moment:
    """The time of a plan, and how long a pod may wait for room by then."""

    now: float
    """Seconds since 1970."""
    scheduling_timeout: float = math.inf
    """Seconds."""

    def has_waited(self, pod: Pod) -> bool:
        """Whether the pod has had no node for longer than it may."""
        return pod.unplaced_since is not None and self.now >= pod.unplaced_since + self.scheduling_timeout

    def has_refused(self, deployment: Obj | None) -> bool:
        """Whether a Deployment's pods have been refused for longer than a pod may have no node."""
        since = _find_failure_time(deployment)
        return since is not None and self.now >= since + self.scheduling_timeout

    def is_news(self, pod: Pod) -> bool:
        """Whether the pod failed recently."""
        return pod.has_ended and pod.cause is not None and self.now < pod.ended_at + FAILED_SECONDS

    def holds_room(self, pod: Pod) -> bool:
        """Whether the pod still holds room while it leaves. On a lost node it would do so for ever."""
        return pod.is_terminating and (pod.ends_by is None or self.now < pod.ends_by + LOST_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The staying pods, and each revision's state."""

    pods: tuple[Pod, ...]
    states: dict[str, RevisionState]
    moment: Moment
    refusals: tuple[Cause, ...] = ()
    leaving: tuple[Pod, ...] = ()
    """Pods that hold room until they are gone."""
    refused_since: tuple[float, ...] = ()
    """Since when each Deployment whose pods are refused now has been refused them, in seconds since 1970."""
    failed: tuple[Pod, ...] = ()
    """Pods that failed recently as a whole, as on a node that will not admit the next ones either."""

    def state(self, revision: str) -> RevisionState:
        """Return a revision's state. All its counts are zero if nothing of the revision runs."""
        return self.states.get(revision) or RevisionState(revision)

    def pods_of(self, revision: str) -> list[Pod]:
        """Return the revision's staying pods."""
        return [pod for pod in self.pods if pod.revision == revision]

    @property
    def num_wanted(self) -> int:
        """Replicas that the Deployments request, of any revision."""
        return sum(state.num_wanted for state in self.states.values())

    @property
    def num_ready(self) -> int:
        """Replicas that are Ready, of any revision."""
        return sum(pod.is_ready for pod in self.pods)

    def count_homeless(self, desired: int) -> int:
        """Return how many of the desired replicas have had no node or no pod for longer than they may.

        The extra replica of a rollout is not among them.
        """
        homeless = sum(map(self.moment.has_waited, self.pods))
        refused = sum(state.num_refused for state in self.states.values())
        return min(homeless + refused, max(desired - (len(self.pods) - homeless), 0))

    def changes_after(self) -> Iterable[float]:
        """Yield the seconds after which time alone changes this state."""
        patience = self.moment.scheduling_timeout
        ends = [pod.unplaced_since + patience for pod in self.pods if pod.unplaced_since]
        ends += [since + patience for since in self.refused_since]
        ends += [self.moment.now + ROUTING_LOOK_SECONDS for pod in self.pods if not pod.is_routable]
        ends += [pod.ended_at + FAILED_SECONDS for pod in self.failed]
        ends += [pod.ends_by + LOST_SECONDS for pod in self.leaving if pod.ends_by]
        return (end - self.moment.now for end in ends if self.moment.now < end < math.inf)


def observe(
    objects: Iterable[Obj], owned: Mapping[ObjectId, Obj], loads: Mapping[str, PodLoad], moment: Moment
) -> Observed:
    """Return the running replicas: from raw pods, the service's own children, and loads by the pods' uids."""
    pods = [_note_route(pod, loads, moment.now) for pod in map(read_pod, objects)]
    deployments = {read_hash(obj): obj for key, obj in owned.items() if key.kind == DEPLOYMENT.kind}
    hashes = {*deployments, *(pod.revision for pod in pods)}
    states = {digest: _read_state(digest, deployments.get(digest), pods, moment) for digest in hashes}
    return Observed(
        pods=tuple(pod for pod in pods if pod.is_staying),
        states=states,
        moment=moment,
        refusals=tuple(c for d in deployments.values() if (c := _find_refusal(d))),
        leaving=tuple(pod for pod in pods if moment.holds_room(pod)),
        refused_since=tuple(
            since for d in deployments.values() if (since := _find_failure_time(d)) is not None
        ),
        failed=tuple(pod for pod in pods if moment.is_news(pod)),
    )


def _note_route(pod: Pod, loads: Mapping[str, PodLoad], now: float) -> Pod:
    """Return the pod with `is_routable` set: gateways notice a moment later that it is Ready."""
    load = loads.get(pod.uid)
    if load is None or load.is_routable or pod.ready_since is None:
        return pod
    age = now - pod.ready_since  # by the node's clock; the plan waits for no pod whose clock is far ahead
    return replace(pod, is_routable=not 0.0 <= age + CLOCK_SECONDS <= ROUTING_SECONDS + CLOCK_SECONDS)


def find_unseen_deployments(service: Obj, children: Iterable[Obj], pods: Iterable[Obj]) -> frozenset[str]:
    """Return the names of unknown Deployments to which pods of the service belong."""
    seen = {child["metadata"]["name"] for child in children if child["kind"] == DEPLOYMENT.kind}
    staying = (pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"])
    revisions = {metadata.get("labels", {}).get(contract.LABEL_REVISION) for metadata in staying} - {None}
    return frozenset(revision_name(service, revision) for revision in revisions) - seen


def _read_state(digest: str, deployment: Obj | None, pods: Sequence[Pod], moment: Moment) -> RevisionState:
    own = [pod for pod in pods if pod.revision == digest]
    alive = [pod for pod in own if pod.is_staying]
    num_wanted = int((deployment or {}).get("spec", {}).get("replicas", 0))
    reasons = {pod.cause.reason for pod in alive if pod.cause}
    is_refused = len(alive) < num_wanted and _find_refusal(deployment) is not None
    return RevisionState(
        hash=digest,
        num_wanted=num_wanted,
        num_pods=len(alive),
        num_placed=sum(pod.unplaced is None for pod in alive),
        num_ready=sum(pod.is_reached for pod in alive),
        num_serving=sum(pod.is_serving for pod in alive),
        num_terminating=sum(map(moment.holds_room, own)),
        num_ended=sum(pod.has_ended for pod in own),
        num_refused=max(num_wanted - len(alive), 0) if moment.has_refused(deployment) else 0,
        newest_at=max((pod.created_at for pod in alive), default=None),
        lacks_room=is_refused or any(map(moment.has_waited, alive)),
        is_failing=bool(reasons - {Reason.UNSCHEDULABLE} - UNREADY_REASONS),
    )


def _find_refusal(deployment: Obj | None) -> Cause | None:
    """Return why the API server refuses a Deployment's pods, as by a quota or a policy."""
    failure = _find_failure(deployment)
    if not failure:
        return None
    return Cause(Reason.PODS_REFUSED, f"pods are refused: {failure.get('message', '')}")


def _find_failure(deployment: Obj | None) -> dict[str, Any]:
    """Return a Deployment's condition about refused pods; empty without one."""
    found = find_condition((deployment or {}).get("status", {}), "ReplicaFailure")
    return found if found.get("status") == "True" else {}


def _find_failure_time(deployment: Obj | None) -> float | None:
    return parse_time(_find_failure(deployment).get("lastTransitionTime"))
