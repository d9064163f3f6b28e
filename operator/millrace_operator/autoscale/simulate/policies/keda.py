"""KEDA on requests in flight: the HorizontalPodAutoscaler, fed with a value that is asked for every 30 s.

A query that fails holds the count. One with an empty answer counts as zero, which is KEDA's default. Its
cooldown of 300 s concerns the step from one replica to none, which no service here may take.
"""

from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.reading import EVERYTHING
from millrace_operator.autoscale.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscale.simulate.policies.hpa import SYNC_SECONDS, Behaviour, recommend_by_total
from millrace_operator.autoscale.simulate.run import Choice
from millrace_operator.autoscale.windows import DEFAULT_WINDOWS, Windows

POLL_SECONDS = 30.0


class Keda:
    """The requests in flight, shared among all pods, are to be at the target."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, target: float = 64.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._target = target
        self._behaviour = Behaviour(bounds)
        self._polled_at = float("-inf")
        self._value: float | None = None

    def choose(self, signals: Signals, now: float) -> Choice:
        """Ask every 30 s, and follow the last answer."""
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            self._value = None if EVERYTHING in signals.rejected else sum(signals.in_flight.values())
        if self._value is None:
            return Choice(signals.fleet.current, "the query failed")
        current = signals.fleet.current
        wanted = recommend_by_total(self._value, current, self._target)
        return Choice(self._behaviour.follow(current, wanted, now), f"{self._value:g} in flight")
