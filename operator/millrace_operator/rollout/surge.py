"""How a new revision takes over: pure, level-triggered, one Deployment for each revision.

At first there is one replica more than desired (Surge). If it finds no room, and at least two replicas are
desired, one old replica at a time makes room (Replace). The method stays until the rollout ends, or it would
change back whenever there is room. Old replicas go only as new ones become Ready. The service's owner can
choose one method for good.

A revision may take over while nothing runs, as after an edit at zero. Then the earlier revision starts beside
it and stays until a replica is Ready, because it is unknown whether the new one can serve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from millrace_operator.api.rollout_types import RolloutStrategy


class Method(StrEnum):
    """How a new replica gets room."""

    SURGE = "Surge"
    REPLACE = "Replace"


def read_method(rollout: Mapping[str, Any]) -> Method:
    """Return the method in `status.rollout`. A newer operator's method counts as none."""
    found = rollout.get("method")
    return Method(found) if found in set(Method) else Method.SURGE


@dataclass(frozen=True)
class RevisionState:
    """The present replicas of a revision. Pods that are being deleted count only in `num_terminating`."""

    hash: str
    num_wanted: int = 0
    num_pods: int = 0
    num_ready: int = 0
    """Ready pods that every gateway knows as Ready."""
    num_serving: int = 0
    num_terminating: int = 0
    num_ended: int = 0
    """Pods that ended for good, as after an eviction. Others replace them."""
    newest_at: float | None = None
    """When its youngest pod was created, in seconds since 1970; None without a pod."""
    num_placed: int = 0
    """Pods that have a node."""
    num_refused: int = 0
    """Pods that the API server has refused for longer than a pod may have no node."""
    lacks_room: bool = False
    """Whether a pod has waited long enough for room, or a quota refuses one."""
    is_failing: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it has replicas or is to have some."""
        return self.num_wanted > 0 or self.num_pods > 0


@dataclass(frozen=True)
class Step:
    """Replica counts by revision hash, and whether only the target serves now."""

    counts: dict[str, int]
    method: Method
    is_done: bool


def plan_rollout(
    desired: int,
    target: RevisionState,
    others: Sequence[RevisionState],
    method: Method,
    strategy: RolloutStrategy = RolloutStrategy.AUTOMATIC,
    *,
    most: int | None = None,
    served: str | None = None,
) -> Step:
    """Return the next counts. `others` come in order of preference to keep, the last stable one first.

    `method` is the one so far. While the target is a canary, it may have `most` replicas, and the others keep
    the rest. If a single replica is desired, the other one serves beside the canary, and no room is made
    first. `served` is the last revision that served with all its replicas.
    """
    live = [other for other in others if other.is_live]
    earlier = next((other for other in others if other.hash == served), None)
    if earlier is not None and not live and not target.is_live and desired:
        live = [earlier]
    if most is not None and most < desired:
        live = live or list(others[:1])  # a single replica made room for the canary: it comes back
    if not live:
        is_done = most is None and 0 < desired <= target.num_ready
        return Step({target.hash: desired}, Method.SURGE, is_done)
    if strategy is RolloutStrategy.AUTOMATIC:
        method = _choose_method(desired, target, live, method)
    else:
        method = Method(strategy.value)
    slack = 1 if method is Method.REPLACE else 0
    needed = max(0, desired - slack - target.num_ready)
    if most is not None:
        needed = max(needed, desired - most, 1 - slack)
    serving = sum(other.num_serving for other in live)
    is_tried = most is not None or (target.is_failing and serving > 0)
    kept = needed if is_tried else min(serving, needed)
    if earlier is not None and not serving and not target.num_ready:
        kept = max(kept, _start_beside(earlier, target, max(needed, 1)))
    wanted = min(desired, desired + 1 - slack - kept)
    if target.is_failing:
        wanted = min(wanted, target.num_ready + 1)
    if most is not None:
        wanted = min(wanted, most)
    return Step({**_share(kept, live), target.hash: max(0, wanted)}, method, is_done=False)


def _start_beside(earlier: RevisionState, target: RevisionState, needed: int) -> int:
    """Return how many replicas the earlier revision starts, or keeps starting, while nothing is Ready.

    After the start they only become fewer: all if it fails, or as many as have no room.
    """
    if earlier.is_failing:
        return 0
    if not earlier.is_live:
        return 0 if target.is_live else needed
    return min(needed, earlier.num_wanted, earlier.num_placed if earlier.lacks_room else needed)


def _choose_method(
    desired: int, target: RevisionState, live: Sequence[RevisionState], method: Method
) -> Method:
    if desired < 2:
        return Method.SURGE  # with a single replica only its owner may choose an outage
    is_room_coming = any(other.num_terminating for other in live)
    return Method.REPLACE if target.lacks_room and not is_room_coming else method


def _share(kept: int, live: Sequence[RevisionState]) -> dict[str, int]:
    """Return counts that add up to `kept`: the serving replicas, and any rest for the first serving
    revision.
    """
    counts = {}
    for other in live:
        counts[other.hash] = min(kept, other.num_serving)
        kept -= counts[other.hash]
    if kept:
        first = next((other for other in live if other.num_serving), live[0])
        counts[first.hash] += kept
    return counts
