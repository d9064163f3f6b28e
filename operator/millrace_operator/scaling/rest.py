"""Since when a service with minReplicas 0 has been idle, and its wake from zero. Pure.

`count.py` decides what follows. During a wake requests wait until the first replica is Ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace_operator.api.change_record import read_change_lines
from millrace_operator.api.conditions import Reason, find_condition, parse_time, render_time
from millrace_operator.api.types import Spec
from millrace_operator.observed.revisions import Observed
from millrace_operator.observed.snapshot import Demand


@dataclass(frozen=True)
class Rest:
    """Whether a service has requests, and since when it has had none."""

    is_asked: bool
    idle_since: float | None
    """Seconds since 1970; None while it is unknown, or while nothing serves that could be idle."""

    def is_due(self, seconds: float, now: float) -> bool:
        """Whether it has been idle for so long."""
        return self.idle_since is not None and now >= self.idle_since + seconds


def find_rest(demand: Demand, status: dict[str, Any], observed: Observed, start_seconds: float) -> Rest:
    """Return the gateways' report, counted from the time when a replica could have answered.

    Otherwise a service whose first replica starts for longer than scaleToZeroAfter would never serve. If it
    does not start within `start_seconds` more, it rests all the same, provided that it has served before. No
    service rests while a revision takes over: at zero a bad revision would go unnoticed, and a request would
    meet it alone.
    """
    rested_at = _find_rest_time(status)
    is_late = rested_at is not None and (demand.last_end or 0.0) > rested_at
    is_asked = demand.num_open > 0 or is_late
    if is_asked or demand.idle_since is None or "rollout" in status:
        return Rest(is_asked, None)
    ready, loaded = (find_condition(status, name) or {} for name in ("Ready", "ModelReady"))
    times = [demand.idle_since, _find_change_time(status)]
    if observed.num_ready and ready.get("reason") == Reason.SERVING:  # Ready since before any wake
        times += [parse_time(one.get("lastTransitionTime")) or 0.0 for one in (ready, loaded)]
        return Rest(is_asked, max(times))
    return Rest(is_asked, max(times) + start_seconds if "currentRevision" in status else None)


def _find_change_time(status: dict[str, Any]) -> float:
    """Return when the count last changed. If that is lost, the service came to rest with its model."""
    changes = read_change_lines(status.get("scaling", {}).get("lastChanges", []))
    loaded = find_condition(status, "ModelReady") or {}
    at_zero = loaded.get("lastTransitionTime") if loaded.get("reason") == Reason.SCALED_TO_ZERO else None
    return parse_time(changes[-1]["at"] if changes else at_zero) or 0.0


def _find_rest_time(status: dict[str, Any]) -> float | None:
    """Return since when a service has been at rest; None if it is not."""
    is_at_rest = status.get("scaling", {}).get("desiredReplicas") == 0
    return _find_change_time(status) + 1.0 if is_at_rest else None  # status has whole seconds


AT_ZERO = frozenset({Reason.SCALED_TO_ZERO, Reason.WAKING})
"""Reasons of Ready from which a wake begins or goes on. A failed wake is not resumed."""


class Wake(NamedTuple):
    """A wake in progress."""

    until: float
    """When the first request has waited for as long as it may, in seconds since 1970."""

    def describe(self, step: str) -> str:
        """Return what the requests wait for. `step` is the progress of the first pod."""
        return f"requests wait for the first replica, until {render_time(self.until)} at most; {step}"


def find_wake(spec: Spec, old: dict[str, Any], changes: Sequence[dict[str, Any]], now: float) -> Wake | None:
    """Return the wake in progress of a service without a Ready replica; None if it has taken too long.

    `changes` are those of the count. The last one from zero was the wake.
    """
    ready = find_condition(old, "Ready") or {}
    at = next((parse_time(change["at"]) for change in reversed(changes) if change["from"] == 0), None)
    if ready.get("status") != "True" or ready.get("reason") not in AT_ZERO or at is None:
        return None
    until = at + spec.scaling.hold_seconds
    return Wake(until) if now < until else None
