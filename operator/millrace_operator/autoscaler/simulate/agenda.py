"""Virtual time: actions in the order of their times."""

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions at times. Two actions at the same time happen in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._actions: list[tuple[float, int, Action]] = []

    def add(self, at: float, action: Action) -> None:
        """Add an action at a time that is not in the past."""
        heapq.heappush(self._actions, (at, next(self._order), action))

    def run_until(self, end: float) -> None:
        """Run all actions before the end, and set the time to the end."""
        actions, pop = self._actions, heapq.heappop
        while actions and actions[0][0] < end:
            self.now, _, action = pop(actions)
            action()
        self.now = end
