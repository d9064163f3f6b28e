"""When to list again, and what. Pure.

Every ten minutes a list of everything finds what a watch has missed. After an event of a service that was
lost, the services are listed soon: nobody brings that event again. What failed is tried again soon. An odd
object may lose each of its events, and an API server may be away for long. So each wait is twice as long as
the one before, until a period was quiet.
"""

import math
from collections.abc import Callable
from enum import IntEnum, auto

PERIOD_SECONDS = 600.0
LOST_SECONDS = 10.0
"""From the first event that was lost to the list that makes up for it."""
SPREAD = 0.1
"""The part of the period by which it is longer or shorter, so that replicas do not list together."""


class Round(IntEnum):
    """What is listed at once. Of two that are owed the later one in this order makes up for both."""

    SERVICES = auto()
    """Their events alone may be lost for good: the watches of all else list anew whatever fails."""
    EVERYTHING = auto()


class Rounds:
    """Owner of the time of the next list. All times are in seconds of one clock that never goes back."""

    def __init__(self, now: float, draw: Callable[[], float]) -> None:
        """`draw` returns the chance in a period, from 0 to 1."""
        self._draw = draw
        self._regular_at = now + self._draw_period()
        self._repair_at = math.inf
        """When a list is due that makes up for something; never, where there is nothing."""
        self._owed = Round.SERVICES
        """What that one has to list."""
        self._repair_wait = LOST_SECONDS
        self._is_quiet = True
        """Whether there was nothing to make up for since the last regular list."""

    @property
    def due_at(self) -> float:
        """When the next list is due."""
        return min(self._regular_at, self._repair_at)

    def owe(self, what: Round, now: float) -> None:
        """Know that there is something to make up for: an event was lost, or such a list has failed."""
        self._is_quiet = False
        self._owed = max(self._owed, what)
        if self._repair_at == math.inf:
            self._repair_at = now + self._repair_wait
            self._repair_wait = min(2.0 * self._repair_wait, PERIOD_SECONDS)

    def begin(self, now: float) -> Round:
        """Return what is listed now. What is lost from now on needs another list."""
        is_regular = now >= self._regular_at
        found = Round.EVERYTHING if is_regular else self._owed
        if is_regular:
            self._repair_wait = LOST_SECONDS if self._is_quiet else self._repair_wait
            self._is_quiet = True
        if found is Round.EVERYTHING:
            self._regular_at = now + self._draw_period()
        self._repair_at, self._owed = math.inf, Round.SERVICES
        return found

    def _draw_period(self) -> float:
        return PERIOD_SECONDS * (1.0 + SPREAD * (2.0 * self._draw() - 1.0))
