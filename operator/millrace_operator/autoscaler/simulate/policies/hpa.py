"""Kubernetes' HorizontalPodAutoscaler on requests in flight or waiting, with its default behaviour.

Every 15 s. Pods without a metric count as at the target on the way down, and as idle on the way up. Up at
most to twice the count or by four, whichever is more; down to the largest count wanted in the last 300 s.
"""

import math
from collections.abc import Sequence

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.windows import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.behaviour import Behaviour, recommend_by_total
from millrace_operator.autoscaler.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscaler.simulate.run import Choice

SYNC_SECONDS = 15.0
TOLERANCE = 0.1


def recommend_by_pod(values: Sequence[float], num_missing: int, target: float) -> int:
    """Return the count for a metric that each pod has, `num_missing` of which show none."""
    current = len(values) + num_missing
    ratio = sum(values) / len(values) / target
    assumed = target if ratio <= 1 else 0.0
    filled = [*values, *[assumed] * num_missing]
    whole = sum(filled) / len(filled) / target
    turns = (ratio < 1 < whole) or (ratio > 1 > whole)
    return current if turns or abs(whole - 1) <= TOLERANCE else math.ceil(whole * len(filled))


class HpaInFlight:
    """The average of requests running and waiting over all pods is to be at the target."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, target: float = 64.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._target = target
        self._behaviour = Behaviour(bounds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Hold where no pod shows the metric."""
        values = list(signals.in_flight.values())
        if not values:
            return Choice(signals.fleet.current, "no metric")
        current = signals.fleet.current
        wanted = recommend_by_pod(values, current - len(values), self._target)
        return Choice(self._behaviour.follow(current, wanted, now), f"{sum(values):g} in flight")


class HpaQueue:
    """The requests that wait, shared among all pods, are to be at the target."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, target: float = 5.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._target = target
        self._behaviour = Behaviour(bounds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Hold where the metric is unknown."""
        if signals.waiting is None:
            return Choice(signals.fleet.current, "no metric")
        current = signals.fleet.current
        wanted = recommend_by_total(signals.waiting, current, self._target)
        return Choice(self._behaviour.follow(current, wanted, now), f"{signals.waiting:g} waiting")
