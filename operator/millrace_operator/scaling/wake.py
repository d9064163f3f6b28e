"""The wake of a service that was at zero: until its first replica is Ready, requests wait for it. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from millrace_operator.api.conditions import Reason, find_condition, parse_time, render_time
from millrace_operator.api.types import Spec

AT_ZERO = frozenset({Reason.SCALED_TO_ZERO, Reason.WAKING})
"""Reasons of Ready from which a wake begins or goes on. One that has failed is not taken up again."""


class Wake(NamedTuple):
    """A wake under way."""

    until: float
    """When the first request has waited for as long as it may, in seconds since 1970."""

    def describe(self, step: str) -> str:
        """Return what is waited for; `step` is how far the first pod is."""
        return f"requests wait for the first replica, until {render_time(self.until)} at most; {step}"


def find_wake(spec: Spec, old: dict[str, Any], changes: Sequence[dict[str, Any]], now: float) -> Wake | None:
    """Return the wake under way of a service without a Ready replica; None where it has taken too long.

    `changes` are those of the count. The last that began at zero was the wake.
    """
    ready = find_condition(old, "Ready") or {}
    at = next((parse_time(change["at"]) for change in reversed(changes) if change["from"] == 0), None)
    if ready.get("status") != "True" or ready.get("reason") not in AT_ZERO or at is None:
        return None
    until = at + spec.scaling.hold_seconds
    return Wake(until) if now < until else None
