"""Decides when the executor records decode steps. Each size takes a large part of a second."""

from bisect import bisect_left
from collections.abc import Sequence

BUSY_SECONDS = 5.0
"""Between recordings while sequences run. Their streams pause during a recording."""
REST_SECONDS = 0.5
"""Between the starts of two recordings while there is no work. A new request waits for at most one recording,
even if workers record asynchronously."""


class Recordings:
    """The sizes that are not recorded yet, and the next one."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes` are the numbers of rows that can be recorded, ascending."""
        self._sizes, self._missing = tuple(sizes), list(sizes)
        self._last = float("-inf")

    @property
    def is_complete(self) -> bool:
        """Whether every size is recorded."""
        return not self._missing

    def choose_at_rest(self, now: float) -> int | None:
        """Return the size that an idle engine records now: the largest, whose memory the others can use."""
        if not self._missing or now - self._last < REST_SECONDS:
            return None
        return self._missing[-1]

    def choose_at_work(self, num_running: int, now: float) -> int | None:
        """Return the size that a busy engine records now: only one that its sequences need, and rarely."""
        place = bisect_left(self._sizes, num_running)
        if num_running == 0 or place == len(self._sizes) or now - self._last < BUSY_SECONDS:
            return None
        return self._sizes[place] if self._sizes[place] in self._missing else None

    def note(self, size: int, now: float) -> None:
        """Note that a size was recorded, at a time in seconds."""
        self._missing.remove(size)
        self._last = now
