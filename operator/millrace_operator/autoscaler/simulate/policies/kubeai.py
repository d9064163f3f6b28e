"""KubeAI's autoscaler: the mean of active requests over ten minutes, in units of a target.

Every 10 s. It goes up at once, and down after three looks in a row that ask for less.
"""

import math
from collections import deque

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.windows import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscaler.simulate.run import Choice

AVERAGED_LOOKS = 60
VOTES_FOR_DOWN = 3


class KubeAI:
    """Active requests are those that run or wait."""

    tick_seconds = 10.0

    def __init__(self, bounds: Bounds, target: float = 100.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._bounds = bounds
        self._target = target
        self._seen: deque[float] = deque(maxlen=AVERAGED_LOOKS)
        self._votes = 0

    def choose(self, signals: Signals, now: float) -> Choice:
        """Hold where nothing is known."""
        del now
        if not signals.in_flight:
            return Choice(signals.fleet.current, "no metric")
        self._seen.append(sum(signals.in_flight.values()))
        mean = sum(self._seen) / len(self._seen)
        wanted = self._bounds.clamp(math.ceil(mean / self._target))
        self._votes = self._votes + 1 if wanted < signals.fleet.current else 0
        if wanted < signals.fleet.current and self._votes < VOTES_FOR_DOWN:
            return Choice(signals.fleet.current, f"{self._votes} votes for {wanted}")
        self._votes = 0
        return Choice(wanted, f"{mean:.1f} active on average")
