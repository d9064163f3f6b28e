"""Decides whether a source is too slow, on one connection or on all together. Pure: callers give the times.

A timeout ends a silent connection. These limits end one that sends a few bytes now and then. If all
connections together are too slow, the fetch ends: the process that started it sees that, and starts it again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

STANDSTILL_SECONDS = 120.0
LEAST_OF_ALL_BYTES_PER_SECOND = 64 << 10
"""For all connections together. A model of 1 GB would take more than four hours."""

WINDOW_SECONDS = 60.0
"""As long as the timeout for silence."""
LEAST_BYTES_PER_SECOND = 1000
"""For one connection, as in dnf. A model of 1 GB would take 12 days."""
_SHORTEST_SECONDS = 1.0
"""A shorter attempt counts as this long: one byte before an immediate close would look fast."""


def is_progress(num_bytes: int, seconds: float) -> bool:
    """Whether a failed attempt fetched enough to reset the count of failures.

    It must have reached the least rate of one connection, over its own duration: some proxies cut every
    connection after some seconds. One byte and then silence is no progress.
    """
    counted_seconds = min(max(seconds, _SHORTEST_SECONDS), WINDOW_SECONDS)
    return num_bytes >= LEAST_BYTES_PER_SECOND * counted_seconds


def describe_slow() -> str:
    """Return the message for a slow connection."""
    return f"fewer than {LEAST_BYTES_PER_SECOND} bytes/s for {WINDOW_SECONDS:g} s"


def describe_standstill() -> str:
    """Return the message for a stalled fetch."""
    least = f"{LEAST_OF_ALL_BYTES_PER_SECOND >> 10} KiB/s for {STANDSTILL_SECONDS:g} s"
    return f"all connections together were slower than {least}; the next run continues from here"


class Flow:
    """Measures the rate of all connections together, window after window."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Received in this window."""
        self._waited_seconds = 0.0

    def wait(self, seconds: float) -> bool:
        """Add time spent waiting for the source. Return whether a window has ended with too few bytes."""
        self._waited_seconds += seconds
        if self._waited_seconds < STANDSTILL_SECONDS:
            return False
        is_slow = self.num_bytes < LEAST_OF_ALL_BYTES_PER_SECOND * self._waited_seconds
        self.num_bytes, self._waited_seconds = 0, 0.0
        return is_slow


class Waits:
    """Decides whether a fetch has stalled. It counts only time in which a connection waits for the source.

    Neither waits for the disk count, nor waits for a Retry-After.
    """

    def __init__(self) -> None:
        self._flow = Flow()
        self._num_fetching = self._num_on_disk = 0

    def count(self, num_bytes: int) -> None:
        """Count received bytes."""
        self._flow.num_bytes += num_bytes

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Count a fetching connection while entered."""
        self._num_fetching += 1
        try:
            yield
        finally:
            self._num_fetching -= 1

    @contextmanager
    def on_disk(self) -> Iterator[None]:
        """Count a worker that waits for the disk while entered."""
        self._num_on_disk += 1
        try:
            yield
        finally:
            self._num_on_disk -= 1

    def tick(self, seconds: float) -> bool:
        """Count time. Return whether the source has stalled, as far as the fetch waits for it."""
        return self._num_fetching > self._num_on_disk and self._flow.wait(seconds)


class Pace:
    """Measures the rate of one connection, window after window."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._waited_seconds = 0.0

    def add(self, num_bytes: int, waited_seconds: float) -> bool:
        """Add bytes and the wait for them. Return whether a window has ended with too few bytes.

        Only time spent waiting for the source counts: a slow disk is not a slow source.
        """
        self._num_bytes += num_bytes
        self._waited_seconds += waited_seconds
        if self._waited_seconds < WINDOW_SECONDS:
            return False
        is_slow = self._num_bytes < LEAST_BYTES_PER_SECOND * self._waited_seconds
        self._num_bytes, self._waited_seconds = 0, 0.0
        return is_slow
