"""KEDA on requests in flight: the HorizontalPodAutoscaler, fed with a value of the whole service.

It is asked for at every sync: KEDA's `pollingInterval` of 30 s concerns the step from none to one, unless
`useCachedMetrics` is set. A query that fails holds the count. One with an empty answer counts as zero, which
is KEDA's default. Its cooldown of 300 s concerns the step from one replica to none, which no service here may
take.
"""

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.reading import EVERYTHING
from millrace_operator.autoscaler.signals.windows import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.behaviour import Behaviour, recommend_by_total
from millrace_operator.autoscaler.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscaler.simulate.policies.hpa import SYNC_SECONDS
from millrace_operator.autoscaler.simulate.run import Choice


class Keda:
    """The requests in flight, shared among all pods, are to be at the target."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, target: float = 64.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._target = target
        self._behaviour = Behaviour(bounds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Hold where the query failed."""
        if EVERYTHING in signals.rejected:
            return Choice(signals.fleet.current, "the query failed")
        current, value = signals.fleet.current, sum(signals.in_flight.values())
        wanted = recommend_by_total(value, current, self._target)
        return Choice(self._behaviour.follow(current, wanted, now), f"{value:g} in flight")
