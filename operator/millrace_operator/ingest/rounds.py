"""When everything is listed again. Pure.

Every ten minutes a list finds what a watch has missed. After an event that was lost, or a list that failed,
another one is due soon: nobody brings that event again. An odd object may lose each of its own, and an API
server may be away for long, so each wait is twice as long as the one before, until a period was quiet.
"""

import math
from collections.abc import Callable

PERIOD_SECONDS = 600.0
LOST_SECONDS = 10.0
"""From the first event that was lost to the list that makes up for it."""
SPREAD = 0.1
"""The part of the period by which it is longer or shorter, so that replicas do not list together."""


class Rounds:
    """Owner of the time of the next list. All times are in seconds of one clock that never goes back."""

    def __init__(self, now: float, draw: Callable[[], float]) -> None:
        """`draw` returns the chance in a period, from 0 to 1."""
        self._draw = draw
        self._regular_at = now + self._draw_period()
        self._repair_at = math.inf
        """When a list is due that makes up for something; never, where there is nothing."""
        self._repair_wait = LOST_SECONDS
        self._is_quiet = True
        """Whether there was nothing to make up for since the last regular list."""

    @property
    def due_at(self) -> float:
        """When the next list is due."""
        return min(self._regular_at, self._repair_at)

    def note_loss(self, now: float) -> None:
        """Know that there is something to make up for: an event was lost, or a list has failed."""
        self._is_quiet = False
        if self._repair_at == math.inf:
            self._repair_at = now + self._repair_wait
            self._repair_wait = min(2.0 * self._repair_wait, PERIOD_SECONDS)

    def begin(self, now: float) -> None:
        """Know that everything is listed now. What is lost from now on needs another list."""
        if now >= self._regular_at:
            if self._is_quiet:
                self._repair_wait = LOST_SECONDS
            self._is_quiet = True
        self._repair_at = math.inf
        self._regular_at = now + self._draw_period()

    def _draw_period(self) -> float:
        return PERIOD_SECONDS * (1.0 + SPREAD * (2.0 * self._draw() - 1.0))
