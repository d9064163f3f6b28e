"""A count that another controller wishes, followed by a HorizontalPodAutoscaler.

So llm-d's Workload Variant Autoscaler acts: it writes the count as a metric every 60 s, and an HPA or KEDA on
that metric (an average value of 1 a pod) changes the Deployment.
"""

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.simulate.policies.behaviour import (
    DEFAULT_RULES,
    Behaviour,
    Rules,
    recommend_by_total,
)
from millrace_operator.autoscaler.simulate.policies.bounds import Bounds
from millrace_operator.autoscaler.simulate.policies.hpa import SYNC_SECONDS
from millrace_operator.autoscaler.simulate.run import Choice, Scaler


class ThroughHpa:
    """Asks the other for its wish as often as that looks, and follows the last one every 15 s."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, other: Scaler, rules: Rules = DEFAULT_RULES) -> None:
        self.windows = other.windows
        self._other = other
        self._behaviour = Behaviour(bounds, rules)
        self._asked_at = float("-inf")
        self._wish = Choice(0, "")

    def choose(self, signals: Signals, now: float) -> Choice:
        """Follow the last wish."""
        if now - self._asked_at >= self._other.tick_seconds:
            self._asked_at, self._wish = now, self._other.choose(signals, now)
        current = signals.fleet.current
        wanted = recommend_by_total(self._wish.replicas, current, 1.0)
        return Choice(self._behaviour.follow(current, wanted, now), self._wish.why)
