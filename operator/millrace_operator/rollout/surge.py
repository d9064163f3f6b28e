"""How a new revision takes over: pure, level-triggered, one Deployment a revision.

At first there is one replica more than desired (Surge). Where there is no room for it, and at least two
replicas are desired, one old replica at a time makes room (Replace). That stays so until the rollout ends, or
the method would change back each time there is room. Old replicas go only as new ones become Ready. The
service's owner can have either of both alone.

Where nothing runs and a revision is to take over, as with a service that was edited at zero, the former one
starts beside it and stays until something is Ready: nobody knows yet whether the new one can serve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from millrace_operator.api.rollout_types import RolloutStrategy


class Method(StrEnum):
    """Where the room for a new replica comes from."""

    SURGE = "Surge"
    REPLACE = "Replace"


def read_method(rollout: Mapping[str, Any]) -> Method:
    """Return the method in `status.rollout`. One that only a newer operator knows is as none."""
    found = rollout.get("method")
    return Method(found) if found in set(Method) else Method.SURGE


@dataclass(frozen=True)
class RevisionState:
    """What a revision has now. Pods that are being deleted count in `num_terminating` alone."""

    hash: str
    num_wanted: int = 0
    num_pods: int = 0
    num_ready: int = 0
    """Those that are Ready, and that every gateway knows to be."""
    num_serving: int = 0
    num_terminating: int = 0
    num_ended: int = 0
    """Pods whose containers ended for good: evicted, say. Others are made in their place."""
    newest_at: float | None = None
    """When the youngest of its pods was made, in seconds since 1970; None where there is none."""
    num_placed: int = 0
    """Pods that have a node."""
    num_refused: int = 0
    """Pods that the API server has refused for longer than one may have no node: a quota, a policy."""
    lacks_room: bool = False
    """Whether it has waited long enough for room for a pod, or a quota refuses one."""
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

    `method` is the one so far. `most` replicas may be the target's while it is a canary, and the others then
    keep the rest: with a single one desired it serves beside the canary, where room need not be made first.
    `served` is the revision that last served with all its replicas.
    """
    live = [other for other in others if other.is_live]
    former = next((other for other in others if other.hash == served), None)
    if former is not None and not live and not target.is_live and desired:
        live = [former]
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
    if former is not None and not serving and not target.num_ready:
        kept = max(kept, _start_beside(former, target, max(needed, 1)))
    wanted = min(desired, desired + 1 - slack - kept)
    if target.is_failing:
        wanted = min(wanted, target.num_ready + 1)
    if most is not None:
        wanted = min(wanted, most)
    return Step({**_share(kept, live), target.hash: max(0, wanted)}, method, is_done=False)


def _start_beside(former: RevisionState, target: RevisionState, needed: int) -> int:
    """Return how many replicas the former revision starts, or goes on starting, while nothing is Ready.

    Begun once, they only become fewer: where it fails, or as many as have no room.
    """
    if former.is_failing:
        return 0
    if not former.is_live:
        return 0 if target.is_live else needed
    return min(needed, former.num_wanted, former.num_placed if former.lacks_room else needed)


def _choose_method(
    desired: int, target: RevisionState, live: Sequence[RevisionState], method: Method
) -> Method:
    if desired < 2:
        return Method.SURGE  # with a single replica nobody but its owner may choose an outage
    is_room_coming = any(other.num_terminating for other in live)
    return Method.REPLACE if target.lacks_room and not is_room_coming else method


def _share(kept: int, live: Sequence[RevisionState]) -> dict[str, int]:
    """Return counts that add up to `kept`: what serves, and any rest for the first that serves."""
    counts = {}
    for other in live:
        counts[other.hash] = min(kept, other.num_serving)
        kept -= counts[other.hash]
    if kept:
        first = next((other for other in live if other.num_serving), live[0])
        counts[first.hash] += kept
    return counts
