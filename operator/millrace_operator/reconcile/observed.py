"""What runs now, by revision. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace_operator.cluster.kinds import Obj
from millrace_operator.reconcile.pods import Cause, Pod, read_pod
from millrace_operator.reconcile.revision import read_hash
from millrace_operator.reconcile.rollout import RevisionState
from millrace_operator.reconcile.snapshot import Snapshot
from millrace_operator.resources.conditions import Reason


@dataclass(frozen=True)
class Observed:
    """The pods that are not terminating, and each revision's state."""

    pods: tuple[Pod, ...]
    states: dict[str, RevisionState]
    refusals: tuple[Cause, ...] = ()

    def state(self, revision: str) -> RevisionState:
        """Return a revision's state. It is all zero when nothing of the revision runs."""
        return self.states.get(revision) or RevisionState(revision)

    def pods_of(self, revision: str) -> list[Pod]:
        """Return the revision's pods that are not terminating."""
        return [pod for pod in self.pods if pod.revision == revision]

    @property
    def num_wanted(self) -> int:
        """Replicas that the Deployments ask for, of any revision."""
        return sum(state.num_wanted for state in self.states.values())

    @property
    def num_ready(self) -> int:
        """Replicas that answer now, of any revision."""
        return sum(pod.is_ready for pod in self.pods)


def observe(snapshot: Snapshot) -> Observed:
    """Return what runs now."""
    pods = [read_pod(pod) for pod in snapshot.pods]
    deployments = {read_hash(obj): obj for key, obj in snapshot.owned().items() if key.kind == "Deployment"}
    hashes = {*deployments, *(pod.revision for pod in pods)}
    states = {digest: _read_state(digest, deployments.get(digest), pods) for digest in hashes}
    alive = tuple(pod for pod in pods if not pod.is_terminating)
    return Observed(alive, states, tuple(c for d in deployments.values() if (c := _find_refusal(d))))


def _read_state(digest: str, deployment: Obj | None, pods: Sequence[Pod]) -> RevisionState:
    own = [pod for pod in pods if pod.revision == digest]
    alive = [pod for pod in own if not pod.is_terminating]
    reasons = {pod.cause.reason for pod in alive if pod.cause}
    return RevisionState(
        hash=digest,
        num_wanted=int((deployment or {}).get("spec", {}).get("replicas", 0)),
        num_pods=len(alive),
        num_ready=sum(pod.is_ready for pod in alive),
        num_serving=sum(pod.is_serving for pod in alive),
        num_terminating=len(own) - len(alive),
        is_unschedulable=Reason.UNSCHEDULABLE in reasons,
        is_failing=bool(reasons - {Reason.UNSCHEDULABLE}),
    )


def _find_refusal(deployment: Obj) -> Cause | None:
    """Return why the API server refuses a Deployment's pods: a quota, a policy."""
    for condition in deployment.get("status", {}).get("conditions", []):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return Cause(Reason.PODS_REFUSED, f"pods are refused: {condition.get('message', '')}")
    return None
