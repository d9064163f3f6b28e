"""A service in which requests come, and are late, by chance. All signals speak of the same requests."""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Bracket, Latency, Signals
from tests.operator.autoscaler.hours import TICK_SECONDS, see

WINDOW_SECONDS, RECENT_SECONDS = 60.0, 20.0
LatePart = Callable[[float, int, Objective], float]
"""Takes the time, the replicas and the objective. Returns the part of the requests that is late."""


class Chance:
    """Draws the requests of each tick, alone or in batches, and shows the last minute of them."""

    def __init__(
        self,
        rate: Callable[[float], float],
        late_part: LatePart,
        objectives: Sequence[Objective],
        *,
        batch: int = 1,
        seed: int = 1,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._rate, self._late_part, self._objectives, self._batch = rate, late_part, objectives, batch
        self._random = random.Random(seed)
        self._tick_seconds = tick_seconds
        self._window: deque[tuple[int, list[int]]] = deque(maxlen=round(WINDOW_SECONDS / tick_seconds))
        self._num_recent = round(RECENT_SECONDS / tick_seconds)
        self.hours: dict[int, list[tuple[int, list[int]]]] = {}
        """By hour, how many came in each tick, and how many of them were late for each objective."""

    def look(self, now: float, count: int) -> Signals:
        came = self._batch * self._count(self._rate(now) * self._tick_seconds / self._batch)
        late = [
            sum(self._random.random() < self._late_part(now, count, each) for _ in range(came))
            for each in self._objectives
        ]
        self._window.append((came, late))
        self.hours.setdefault(int(now // 3600), []).append((came, late))
        total = sum(number for number, _ in self._window)
        recent = [number for number, _ in list(self._window)[-self._num_recent :]]
        return see(
            count,
            total / (len(self._window) * self._tick_seconds),
            recent_arrivals_per_second=sum(recent) / (len(recent) * self._tick_seconds),
            running=max(total / 60, 0.01),
            latencies=tuple(self._measure(number, total) for number in range(len(self._objectives)) if total),
        )

    def find_late_part(self, objective: Objective, hours: range) -> float:
        """Return the part of the requests of some hours that was late for an objective."""
        place = list(self._objectives).index(objective)
        ticks = [tick for hour in hours for tick in self.hours[hour]]
        return sum(late[place] for _, late in ticks) / sum(came for came, _ in ticks)

    def _measure(self, number: int, total: int) -> Latency:
        objective = self._objectives[number]
        share = 1 - sum(late[number] for _, late in self._window) / total
        target = objective.target_seconds
        seconds = target * (2.0 if share < objective.percentile / 100 else 0.5)
        return Latency(objective, seconds, float(total), Bracket(target, target, share, share))

    def _count(self, mean: float) -> int:
        """Return a number drawn from Poisson's distribution."""
        below, count, product = math.exp(-mean), 0, self._random.random()
        while product > below:
            count, product = count + 1, product * self._random.random()
        return count
