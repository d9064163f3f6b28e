"""Decides when the executor records decode steps, which takes a good part of a second for each size."""

from bisect import bisect_left
from collections.abc import Sequence

BUSY_SECONDS = 5.0
"""Between recordings while sequences run: each of their streams pauses meanwhile."""
REST_SECONDS = 0.5
"""Between recordings while there is no work, from begin to begin: a request that comes waits for one at most,
also where workers record after they were told."""


class Recordings:
    """What is not recorded yet, and what is next."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes` are the numbers of rows that can be recorded, ascending."""
        self._sizes, self._missing = tuple(sizes), list(sizes)
        self._last = float("-inf")

    @property
    def is_complete(self) -> bool:
        """Whether there is no more to record."""
        return not self._missing

    def choose_at_rest(self, now: float) -> int | None:
        """Return what an engine without work records now: the largest, in whose memory others find room."""
        if not self._missing or now - self._last < REST_SECONDS:
            return None
        return self._missing[-1]

    def choose_at_work(self, num_running: int, now: float) -> int | None:
        """Return what an engine records now that has sequences: what they need, and seldom; mostly None."""
        place = bisect_left(self._sizes, num_running)
        if num_running == 0 or place == len(self._sizes) or now - self._last < BUSY_SECONDS:
            return None
        return self._sizes[place] if self._sizes[place] in self._missing else None

    def note(self, size: int, now: float) -> None:
        """Note that a size was recorded, at a time in seconds."""
        self._missing.remove(size)
        self._last = now
