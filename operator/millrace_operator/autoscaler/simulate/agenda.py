"""Virtual time: what happens when, in order."""

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions at times. Of two at the same time the one that was added first comes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._actions: list[tuple[float, int, Action]] = []

    def add(self, at: float, action: Action) -> None:
        """Let an action happen at a time, which is not in the past."""
        heapq.heappush(self._actions, (at, next(self._order), action))

    def run_until(self, end: float) -> None:
        """Let everything happen that comes before the end, and let the time be the end."""
        actions, pop = self._actions, heapq.heappop
        while actions and actions[0][0] < end:
            self.now, _, action = pop(actions)
            action()
        self.now = end
