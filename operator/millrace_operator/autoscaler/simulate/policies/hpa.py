"""Kubernetes' HorizontalPodAutoscaler, KEDA, and an HPA that follows another controller's count.

An HPA decides every 15 s. Pods without a metric count as at the target on the way down, and as idle on the
way up. It goes up at most to twice the count or by four, whichever is more, and down to the largest count
wanted in the last 300 s.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.reading import EVERYTHING
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.run import Choice, Scaler

SYNC_SECONDS = 15.0
TOLERANCE = 0.1


@dataclass(frozen=True)
class Bounds:
    """The least and the most replicas that a rule may choose."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(
                f"replicas from {self.least} to {self.most}; write 1 or more, the smaller one first"
            )

    def clamp(self, count: float) -> int:
        """Return the nearest whole count within the bounds."""
        return int(max(self.least, min(count, self.most)))


def check_knob(name: str, value: float) -> None:
    """Raise ValueError for a knob's value that makes no sense."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; write more than 0")


@dataclass(frozen=True)
class Rules:
    """`spec.behavior` of autoscaling/v2: windows and speeds, in seconds and pods.

    The defaults are Kubernetes'.
    """

    up_window: float = 0.0
    """A scale-up goes to the smallest count that was wanted in this window."""
    down_window: float = 300.0
    """A scale-down goes to the largest count that was wanted in this window."""
    up_pods: int = 4
    """Pods in a period, or twice the count, whichever is more."""
    up_period: float = 15.0
    down_pods: int | None = None
    """Pods in a period; None: all."""
    down_period: float = 15.0


DEFAULT_RULES = Rules()


class _Wanted(NamedTuple):
    at: float
    replicas: int


class Behaviour:
    """How far an HPA follows a wanted count at once. It remembers wanted counts and its own steps."""

    def __init__(self, bounds: Bounds, rules: Rules = DEFAULT_RULES) -> None:
        self._bounds = bounds
        self._rules = rules
        self._wanted: list[_Wanted] = []
        self._steps: list[_Wanted] = []
        """The changes of the count, negative on the way down."""

    def follow(self, current: int, wanted: int, now: float) -> int:
        """Return the count from now on. The first count counts as wanted."""
        if not self._wanted:
            self._wanted.append(_Wanted(now, current))
        longest = max(self._rules.up_window, self._rules.down_window)
        self._wanted = [one for one in self._wanted if one.at > now - longest]
        self._wanted.append(_Wanted(now, self._bounds.clamp(wanted)))
        count = self._limit(current, self._stabilise(current, now), now)
        if count != current:
            self._steps.append(_Wanted(now, count - current))
        return count

    def _stabilise(self, current: int, now: float) -> int:
        """Return the count that agrees with all wanted counts in the windows."""
        rules, latest = self._rules, self._wanted[-1]
        least = min(one.replicas for one in self._wanted if one is latest or one.at > now - rules.up_window)
        most = max(one.replicas for one in self._wanted if one is latest or one.at > now - rules.down_window)
        return min(max(current, least), most)

    def _limit(self, current: int, wanted: int, now: float) -> int:
        """Return how far this period allows to go."""
        rules = self._rules
        longest = max(rules.up_period, rules.down_period)
        self._steps = [step for step in self._steps if step.at > now - longest]
        if wanted > current:
            base = current - self._sum_steps(now - rules.up_period)
            return min(wanted, max(2 * base, base + rules.up_pods, current))
        if wanted < current and rules.down_pods is not None:
            base = current - self._sum_steps(now - rules.down_period)
            return min(max(wanted, base - rules.down_pods), current)
        return wanted

    def _sum_steps(self, since: float) -> int:
        """Return the change of the count since a time, to find the count at the beginning of a period."""
        return sum(step.replicas for step in self._steps if step.at > since)


def recommend_by_total(total: float, current: int, target: float) -> int:
    """Return the count for one metric of the whole service, with a target for each pod's share."""
    if abs(total / (target * current) - 1) <= TOLERANCE:
        return current
    return math.ceil(total / target)


def recommend_by_pod(values: Sequence[float], num_missing: int, target: float) -> int:
    """Return the count for a metric of each pod; `num_missing` pods have none."""
    current = len(values) + num_missing
    ratio = sum(values) / len(values) / target
    assumed = target if ratio <= 1 else 0.0
    filled = [*values, *[assumed] * num_missing]
    whole = sum(filled) / len(filled) / target
    turns = (ratio < 1 < whole) or (ratio > 1 > whole)
    return current if turns or abs(whole - 1) <= TOLERANCE else math.ceil(whole * len(filled))


class HpaInFlight:
    """Keeps the mean number of requests that run or wait in a pod at the target."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, target: float = 64.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._target = target
        self._behaviour = Behaviour(bounds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; hold if no pod has the metric."""
        values = list(signals.in_flight.values())
        if not values:
            return Choice(signals.fleet.current, "no metric")
        current = signals.fleet.current
        wanted = recommend_by_pod(values, current - len(values), self._target)
        return Choice(self._behaviour.follow(current, wanted, now), f"{sum(values):g} in flight")


class HpaQueue:
    """Keeps the mean number of waiting requests in a pod at the target."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, target: float = 5.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._target = target
        self._behaviour = Behaviour(bounds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; hold if the metric is unknown."""
        if signals.waiting is None:
            return Choice(signals.fleet.current, "no metric")
        current = signals.fleet.current
        wanted = recommend_by_total(signals.waiting, current, self._target)
        return Choice(self._behaviour.follow(current, wanted, now), f"{signals.waiting:g} waiting")


class Keda:
    """KEDA: an HPA whose metric is one value of the whole service, here its requests in flight.

    The HPA asks for it at every sync: KEDA's `pollingInterval` of 30 s concerns the step from none to one,
    unless `useCachedMetrics` is set. A query that fails holds the count. One with an empty answer counts as
    zero, which is KEDA's default. Its cooldown of 300 s concerns the step from one replica to none, which no
    service here may take.
    """

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, target: float = 64.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._target = target
        self._behaviour = Behaviour(bounds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; hold if the query failed."""
        if EVERYTHING in signals.rejected:
            return Choice(signals.fleet.current, "the query failed")
        current, value = signals.fleet.current, sum(signals.in_flight.values())
        wanted = recommend_by_total(value, current, self._target)
        return Choice(self._behaviour.follow(current, wanted, now), f"{value:g} in flight")


class ThroughHpa:
    """An HPA that follows the count of another controller, which decides at its own interval.

    So llm-d's Workload Variant Autoscaler acts: it writes the count as a metric every 60 s, and an HPA or
    KEDA on that metric (an average value of 1 a pod) changes the Deployment.
    """

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, other: Scaler, rules: Rules = DEFAULT_RULES) -> None:
        self.windows = other.windows
        self._other = other
        self._behaviour = Behaviour(bounds, rules)
        self._asked_at = float("-inf")
        self._wish = Choice(0, "")

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; it follows the last wish."""
        if now - self._asked_at >= self._other.tick_seconds:
            self._asked_at, self._wish = now, self._other.choose(signals, now)
        current = signals.fleet.current
        wanted = recommend_by_total(self._wish.replicas, current, 1.0)
        return Choice(self._behaviour.follow(current, wanted, now), self._wish.why)
