"""Signs of life of the workers, in a page of memory that they share with the engine."""

import mmap
import os
from collections.abc import Callable
from threading import Thread
from time import monotonic, sleep

BEAT_SECONDS = 0.1
"""How often a worker writes that it lives, and how far it has come."""
LOOK_SECONDS = 2.5
"""An engine looks more often: every second when it is idle."""
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

    def last_beat(self, worker: int) -> float:
        """Return when the worker last beat; 0 before it did."""
        return self._words[2 * worker] / _TICKS_A_SECOND

    def progress(self, num_workers: int) -> int:
        """Return the progress of all workers together."""
        return sum(self._words[2 * worker + 1] for worker in range(num_workers))

    def close(self) -> None:
        """Unmap the page; others keep theirs."""
        self._words.release()
        self._page.close()
        os.close(self.fd)


class Watch:
    """Judges who is silent. Times are time.monotonic()."""

    def __init__(self, now: float) -> None:
        self._looked = self._since = now

    def measure_silence(self, last_beat: float, now: float) -> float:
        """Return for how long somebody has not beaten while we looked.

        Who has not looked for a while was stopped itself, and the others maybe with it: a container that is
        paused and goes on. They get as long as ever to beat again.
        """
        if now - self._looked > LOOK_SECONDS:
            self._since = now
        self._looked = now
        return now - max(last_beat, self._since)


def keep_beating(vitals: Vitals, worker: int, read_progress: Callable[[], int]) -> None:
    """Beat from a thread of its own, for as long as the process runs.

    A step that takes long is no silence: its progress tells. A stopped process is.
    """

    def beat() -> None:
        while True:
            vitals.beat(worker, read_progress(), monotonic())
            sleep(BEAT_SECONDS)

    Thread(target=beat, name="vitals", daemon=True).start()
