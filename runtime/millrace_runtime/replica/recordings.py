"""Decides when the executor records steps. Each size takes a large part of a second.

The trial before Ready records what it times (`trial.py`), and the engine's loop records the rest.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from millrace_runtime.protocol.step import StepSize

BUSY_SECONDS = 5.0
"""Between recordings while sequences run. Their streams pause during a recording."""
REST_SECONDS = 0.5
"""Between the starts of two recordings while there is no work. A new request waits for at most one recording,
even if workers record asynchronously."""


class Recordings:
    """The sizes that are not recorded yet, and the next one."""

    def __init__(self, sizes: Sequence[StepSize]) -> None:
        """`sizes` can be recorded, ascending."""
        self._sizes, self._missing = tuple(sizes), list(sizes)
        self._last = float("-inf")

    @property
    def is_complete(self) -> bool:
        """Whether every size is recorded."""
        return not self._missing

    def choose_at_rest(self, now: float) -> StepSize | None:
        """Return the size that an idle engine records now: the largest, whose memory the others can use."""
        if not self._missing or now - self._last < REST_SECONDS:
            return None
        return self._missing[-1]

    def choose_at_work(self, steps: Iterable[StepSize], now: float) -> StepSize | None:
        """Return the size that a busy engine records now: rarely, and only one that its steps need.

        As at rest the largest comes first. Sizes that are recorded in ascending order share no memory: the
        logits of all up to 256 rows of 128k tokens would take 1.1 GB instead of 131 MB.

        `steps` are the sizes of its steps, the most important first.
        """
        if now - self._last < BUSY_SECONDS:
            return None
        needed = next((size for step in steps if (size := self.find_missing(step)) is not None), None)
        if needed is None:
            return None
        return self._sizes[-1] if self._sizes[-1] in self._missing else needed

    def note(self, size: StepSize, now: float) -> None:
        """Note that a size was recorded, at a time in seconds."""
        self._missing.remove(size)
        self._last = now

    def find_missing(self, step: StepSize) -> StepSize | None:
        """Return the size that is to be recorded for a step; None if it is, or if the step is too large."""
        sizes = [size for size in self._sizes if size.is_mixed is step.is_mixed]
        place = bisect_left(sizes, step)
        return sizes[place] if place < len(sizes) and sizes[place] in self._missing else None
