"""Knative's and KubeAI's autoscalers: the mean requests in flight over a window, in units of a target."""

import math
from collections import deque

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.hpa import Bounds, check_knob
from millrace_operator.autoscaler.simulate.run import Choice

STABLE_SECONDS = 60.0
PANIC_SECONDS = 6.0
UTILISATION = 0.7
PANIC_RATIO = 2.0
FASTEST_UP = 1000
FASTEST_DOWN = 2
AVERAGED_LOOKS = 60
VOTES_FOR_DOWN = 3


class Knative:
    """Knative's pod autoscaler: a stable window of 60 s, and one of 6 s for panic.

    Every 2 s. A replica is to have 70 % of a target. A panic begins when the panic window asks for twice the
    ready replicas: the count then only rises, until the panic window has been calm for 60 s. Prometheus'
    samples stand in for Knative's own, which come each second.
    """

    tick_seconds = 2.0

    def __init__(self, bounds: Bounds, target: float = 100.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._bounds = bounds
        self._per_replica = UTILISATION * target
        self._seen: deque[tuple[float, float]] = deque()
        self._panic_at: float | None = None
        self._most_in_panic = 0
        self._is_new = True

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count by the two windows. A new autoscaler is in panic, which keeps the present
        count.
        """
        if not signals.in_flight:
            return Choice(signals.fleet.current, "no metric")
        self._seen.append((now, sum(signals.in_flight.values())))
        while self._seen[0][0] <= now - STABLE_SECONDS:
            self._seen.popleft()
        ready = max(len(signals.fleet.ready), 1)
        stable, panic = (self._count(now - window, ready) for window in (STABLE_SECONDS, PANIC_SECONDS))
        if self._is_new:
            self._is_new, self._panic_at, self._most_in_panic = False, now, signals.fleet.current
        self._mind_panic(self._want(now - PANIC_SECONDS) / ready, now)
        if self._panic_at is None:
            return Choice(self._bounds.clamp(stable), "stable")
        self._most_in_panic = max(self._most_in_panic, stable, panic)
        return Choice(self._bounds.clamp(self._most_in_panic), "panic")

    def _want(self, since: float) -> int:
        seen = [value for at, value in self._seen if at > since]
        return math.ceil(sum(seen) / len(seen) / self._per_replica)

    def _count(self, since: float, ready: int) -> int:
        return max(ready // FASTEST_DOWN, min(self._want(since), ready * FASTEST_UP))

    def _mind_panic(self, ratio: float, now: float) -> None:
        if ratio >= PANIC_RATIO:
            self._most_in_panic = 0 if self._panic_at is None else self._most_in_panic
            self._panic_at = now
        elif self._panic_at is not None and now - self._panic_at > STABLE_SECONDS:
            self._panic_at, self._most_in_panic = None, 0


class KubeAI:
    """KubeAI's autoscaler: the mean of active requests over ten minutes, those that run or wait.

    Every 10 s. It goes up at once, and down after three looks in a row that ask for less.
    """

    tick_seconds = 10.0

    def __init__(self, bounds: Bounds, target: float = 100.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("target", target)
        self.windows = windows
        self._bounds = bounds
        self._target = target
        self._seen: deque[float] = deque(maxlen=AVERAGED_LOOKS)
        self._votes = 0

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; hold if the metric is unknown."""
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
