"""Which replicas go when there are too many: the idlest ones. They are marked with pod-deletion-cost.

The Deployment shrinks only once we have seen the marks, because the ReplicaSet controller reads them from a
cache of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace_operator.reconcile.pods import DELETION_COST, Pod

LOWEST_COST = "-100"


@dataclass(frozen=True)
class Mark:
    """A deletion cost to set on a pod, or to remove."""

    pod: str
    uid: str
    cost: str | None
    """None removes the annotation."""
    why: str

    @property
    def annotations(self) -> dict[str, str | None]:
        """The annotation as a merge patch has it."""
        return {DELETION_COST: self.cost}


@dataclass(frozen=True)
class Shrink:
    """What to do about one Deployment's count: marks to set first, and the count it may have now."""

    count: int
    marks: tuple[Mark, ...] = ()


def plan_shrink(count: int, current: int, pods: Sequence[Pod], running: Mapping[str, float]) -> Shrink:
    """Return the count to write, at most `current` until enough of `pods` are marked.

    `pods` are one revision's that are not terminating. Pods that are not Ready go first anyway, so only
    Ready ones need a mark.
    """
    marked = [pod for pod in pods if pod.is_marked]
    if count >= current:
        is_settled = len(pods) <= count
        return Shrink(count, tuple(_unmark(pod) for pod in marked) if is_settled else ())
    ready = [pod for pod in pods if pod.is_ready]
    num_to_mark = max(0, len(ready) - count)
    missing = num_to_mark - sum(pod.is_ready for pod in marked)
    if count == 0 or missing <= 0:
        return Shrink(count)
    candidates = [pod for pod in ready if not pod.is_marked]
    # Two stable sorts: the idlest first, and the youngest of equally idle ones.
    candidates.sort(key=lambda pod: (pod.created, pod.name), reverse=True)
    candidates.sort(key=lambda pod: running.get(pod.name, 0.0))
    return Shrink(current, tuple(_mark(pod, running) for pod in candidates[:missing]))


def _mark(pod: Pod, running: Mapping[str, float]) -> Mark:
    load = f"{running[pod.name]:g} requests in flight" if pod.name in running else "its load is not known"
    return Mark(pod.name, pod.uid, LOWEST_COST, f"it goes first ({load})")


def _unmark(pod: Pod) -> Mark:
    return Mark(pod.name, pod.uid, None, "no replica has to go any more")
