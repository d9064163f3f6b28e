"""Signals of so many replicas, for tests."""

from typing import Any

from millrace_operator.autoscaler.signals.observation import Fleet, Signals


def make_fleet(replicas: int, ready: int | None = None) -> Fleet:
    """Return so many replicas, of which all or so many are Ready."""
    pods = [f"pod-{i}" for i in range(replicas)]
    return Fleet(dict.fromkeys(pods, "one"), frozenset(pods[:ready]), desired=replicas)


def make_signals(
    replicas: int, ready: int, reporting: int = 0, arrivals: float | None = None, **other: Any
) -> Signals:
    """Return what such replicas show; `other` are fields of Signals."""
    fleet = make_fleet(replicas, ready)
    shown = frozenset(sorted(fleet.revisions)[:reporting])
    return Signals(fleet, shown, arrivals_per_second=arrivals, **other)
