"""How a new revision takes over: pure, level-triggered, one Deployment a revision.

At first there is one replica more than desired (Surge). Where the scheduler has no room for it, and at least
two replicas are desired, one old replica at a time makes room (Replace). That stays so until the rollout
ends, or the method would change back each time there is room. Old replicas go only as new ones become Ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Method(StrEnum):
    """Where the room for a new replica comes from."""

    SURGE = "Surge"
    REPLACE = "Replace"


@dataclass(frozen=True)
class RevisionState:
    """What a revision has now. Pods that are terminating count in `num_terminating` alone."""

    hash: str
    num_wanted: int = 0
    num_pods: int = 0
    num_ready: int = 0
    num_serving: int = 0
    num_terminating: int = 0
    is_unschedulable: bool = False
    is_failing: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it has replicas or is to have some."""
        return self.num_wanted > 0 or self.num_pods > 0


@dataclass(frozen=True)
class Step:
    """Replica counts by revision hash, and whether the target alone serves now."""

    counts: dict[str, int]
    method: Method
    is_done: bool


def plan_rollout(
    desired: int, target: RevisionState, others: Sequence[RevisionState], method: Method
) -> Step:
    """Return the next counts. `others` come in order of preference to keep, the last stable one first."""
    live = [other for other in others if other.is_live]
    if not live:
        return Step({target.hash: desired}, Method.SURGE, is_done=target.num_ready >= desired)
    method = _choose_method(desired, target, live, method)
    slack = 1 if method is Method.REPLACE else 0
    needed = max(0, desired - slack - target.num_ready)
    serving = sum(other.num_serving for other in live)
    kept = needed if target.is_failing and serving else min(serving, needed)
    wanted = min(desired, desired + 1 - slack - kept)
    if target.is_failing:
        wanted = min(wanted, target.num_ready + 1)
    return Step({**_share(kept, live), target.hash: max(0, wanted)}, method, is_done=False)


def _choose_method(
    desired: int, target: RevisionState, live: Sequence[RevisionState], method: Method
) -> Method:
    is_room_coming = any(other.num_terminating for other in live)
    if desired >= 2 and target.is_unschedulable and not is_room_coming:
        return Method.REPLACE
    return method if desired >= 2 else Method.SURGE


def _share(kept: int, live: Sequence[RevisionState]) -> dict[str, int]:
    """Return counts that add up to `kept`: what serves, and any rest for the first that serves."""
    counts = {}
    for other in live:
        counts[other.hash] = min(kept, other.num_serving)
        kept -= counts[other.hash]
    if kept:
        first = next(other for other in live if other.num_serving)
        counts[first.hash] += kept
    return counts
