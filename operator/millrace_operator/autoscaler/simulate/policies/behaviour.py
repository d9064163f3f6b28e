"""How far a HorizontalPodAutoscaler follows a wanted count at once: `spec.behavior` of autoscaling/v2."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from millrace_operator.autoscaler.simulate.policies.bounds import Bounds


@dataclass(frozen=True)
class Rules:
    """Windows and speeds, in seconds and pods. The defaults are Kubernetes'."""

    up_window: float = 0.0
    """Up to the least count that was wanted in so long."""
    down_window: float = 300.0
    """Down to the largest count that was wanted in so long."""
    up_pods: int = 4
    """In a period, or to twice the count, whichever is more."""
    up_period: float = 15.0
    down_pods: int | None = None
    """In a period; None: all."""
    down_period: float = 15.0


DEFAULT_RULES = Rules()


class _Wanted(NamedTuple):
    at: float
    replicas: int


class Behaviour:
    """Remembers what was wanted and what was done."""

    def __init__(self, bounds: Bounds, rules: Rules = DEFAULT_RULES) -> None:
        self._bounds = bounds
        self._rules = rules
        self._wanted: list[_Wanted] = []
        self._steps: list[_Wanted] = []
        """By how much the count went up, or down where it is negative."""

    def follow(self, current: int, wanted: int, now: float) -> int:
        """Return the count from now on. At first the count that it finds counts as wanted."""
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
        """Return the count that all that was wanted in the windows agrees on."""
        rules, latest = self._rules, self._wanted[-1]
        least = min(one.replicas for one in self._wanted if one is latest or one.at > now - rules.up_window)
        most = max(one.replicas for one in self._wanted if one is latest or one.at > now - rules.down_window)
        return min(max(current, least), most)

    def _limit(self, current: int, wanted: int, now: float) -> int:
        """Return what of it is allowed in this period."""
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
        """Return by how much the count has changed since: what a period began with is told by it."""
        return sum(step.replicas for step in self._steps if step.at > since)


def recommend_by_total(total: float, current: int, target: float, tolerance: float = 0.1) -> int:
    """Return the count for one metric of the whole service, of which each pod is to have a share."""
    if abs(total / (target * current) - 1) <= tolerance:
        return current
    return math.ceil(total / target)
