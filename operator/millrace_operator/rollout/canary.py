"""How a new revision proves itself on a few replicas before it gets all of them. Pure.

The canary's replicas become ready and serve for a while. Then the revision is promoted, by time or by a
person. A promotion restarts no replica. Only an abort undoes it, even if the spec's canary changes meanwhile.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace_operator.api.annotations import Action
from millrace_operator.api.conditions import Reason, parse_time, render_time
from millrace_operator.api.rollout_types import CanaryOptions, Promotion, Rollout
from millrace_operator.rollout.surge import RevisionState
from millrace_operator.status.causes import Cause

FAULTS = frozenset(
    {
        Reason.CRASHING,
        Reason.OUT_OF_MEMORY,
        Reason.MODEL_INVALID,
        Reason.DEVICE_UNUSABLE,
        Reason.SETTINGS_INVALID,
    }
)
"""Causes of replicas that ended by themselves."""


@dataclass(frozen=True)
class Canary:
    """The progress of a canary. Its times are as the API writes them."""

    replicas: int
    """Replicas of the new revision before its promotion."""
    ready_at: str | None = None
    """Since when they serve; None while they do not."""
    promoted_at: str | None = None
    has_served: bool = False
    """Whether they served in the previous plan."""
    ends_at: float | None = None
    """When time promotes it, in seconds since 1970; None if only a person does."""

    @property
    def is_serving(self) -> bool:
        """Whether it proves itself now, so that no progress is expected."""
        return self.ready_at is not None and self.promoted_at is None

    @property
    def most(self) -> int | None:
        """The most replicas that the revision may have; None once it may have all."""
        return self.replicas if self.promoted_at is None else None

    def render(self) -> dict[str, Any]:
        """Return `status.rollout.canary`."""
        times = {"readyAt": self.ready_at, "promotedAt": self.promoted_at}
        return {"replicas": self.replicas, **{name: at for name, at in times.items() if at is not None}}


def count_canary(options: CanaryOptions, desired: int) -> int:
    """Return how many of the desired replicas are the canary: at least one, a percentage rounded up."""
    text = str(options.replicas)
    wanted = math.ceil(int(text[:-1]) * desired / 100) if text.endswith("%") else int(text)
    return max(1, min(wanted, desired))


def watch_canary(
    options: Rollout,
    rollout: Mapping[str, Any],
    state: RevisionState,
    desired: int,
    *,
    order: Action | None,
    now: float,
) -> Canary | None:
    """Return the progress of a revision's canary, from the old `status.rollout`; None without a canary.

    It is promoted when its time is over while all of its replicas serve. Its time starts again only if all of
    its replicas are lost.
    """
    if options.canary is None or desired == 0:
        return None
    before = rollout.get("canary", {}) if rollout.get("revision") == state.hash else {}
    count = count_canary(options.canary, desired)
    ready_at, promoted_at = _find_ready_at(before, state, count, now), before.get("promotedAt")
    canary = Canary(count, ready_at, promoted_at, has_served="readyAt" in before)
    if canary.promoted_at is None and order is Action.PROMOTE:
        return replace(canary, promoted_at=render_time(now))
    since = parse_time(canary.ready_at)
    if canary.promoted_at or since is None or options.canary.promotion is Promotion.MANUAL:
        return canary
    ends_at = since + options.canary.duration_seconds
    if now >= ends_at and state.num_ready >= count and not state.is_failing:
        return replace(canary, promoted_at=render_time(now))
    return replace(canary, ends_at=ends_at)


def _find_ready_at(before: Mapping[str, Any], state: RevisionState, count: int, now: float) -> str | None:
    if before.get("promotedAt"):
        return before.get("readyAt")
    if not state.num_ready:
        return None
    return before.get("readyAt") or (render_time(now) if state.num_ready >= count else None)


def has_failed(canary: Canary | None, causes: Iterable[Cause]) -> bool:
    """Whether a serving canary's replica ended by itself, and not by its node or registry."""
    if canary is None or not canary.has_served or canary.promoted_at is not None:
        return False
    return any(cause.reason in FAULTS for cause in causes)
