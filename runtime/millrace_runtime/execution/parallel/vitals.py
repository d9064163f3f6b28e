"""Signs of life of the workers, in a page of memory that they share with the engine."""

import mmap
import os
from collections.abc import Callable
from threading import Thread
from time import monotonic, sleep

BEAT_SECONDS = 0.1
"""How often a worker writes that it lives, and how far it has come."""
_TICKS_A_SECOND = 1_000_000


class Vitals:
    """Two words for each worker: when it last beat, and its progress."""

    def __init__(self, fd: int) -> None:
        """Map the page behind a descriptor."""
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._page).cast("q")

    @classmethod
    def create(cls) -> "Vitals":
        """Return a new page, in which nobody has beaten yet."""
        fd = os.memfd_create("millrace-vitals")
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def beat(self, worker: int, progress: int, now: float) -> None:
        """Write a sign of life."""
        self._words[2 * worker + 1] = progress
        self._words[2 * worker] = int(now * _TICKS_A_SECOND)

    def silence(self, worker: int, now: float) -> float:
        """Return the seconds since the worker last beat; 0 before it did."""
        beaten = self._words[2 * worker]
        return now - beaten / _TICKS_A_SECOND if beaten else 0.0

    def progress(self, num_workers: int) -> int:
        """Return the progress of all workers together."""
        return sum(self._words[2 * worker + 1] for worker in range(num_workers))

    def close(self) -> None:
        """Unmap the page; others keep theirs."""
        self._words.release()
        self._page.close()
        os.close(self.fd)


def keep_beating(vitals: Vitals, worker: int, read_progress: Callable[[], int]) -> None:
    """Beat from a thread of its own, for as long as the process runs.

    A step that takes long is no silence: its progress tells. A stopped process is.
    """

    def beat() -> None:
        while True:
            vitals.beat(worker, read_progress(), monotonic())
            sleep(BEAT_SECONDS)

    Thread(target=beat, name="vitals", daemon=True).start()
