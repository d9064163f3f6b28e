"""The heartbeats of the workers, in a page of memory that they share with the engine."""

import mmap
import os
from collections.abc import Callable
from threading import Thread
from time import monotonic, sleep

BEAT_SECONDS = 0.1
"""How often a worker writes a heartbeat and its progress."""
LOOK_SECONDS = 2.5
"""The engine normally looks more often: at least every second when it is idle."""
_TICKS_A_SECOND = 1_000_000


class Heartbeats:
    """Two words for each worker: when it last beat, and its progress."""

    def __init__(self, fd: int) -> None:
        """Map the page behind a descriptor."""
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._page).cast("q")

    @classmethod
    def create(cls) -> "Heartbeats":
        """Return a new page without any heartbeat."""
        fd = os.memfd_create("millrace-heartbeats")
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def beat(self, worker: int, progress: int, now: float) -> None:
        """Write a heartbeat."""
        self._words[2 * worker + 1] = progress
        self._words[2 * worker] = int(now * _TICKS_A_SECOND)

    def last_beat(self, worker: int) -> float:
        """Return the time of the worker's last heartbeat; 0 before the first."""
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
    """Measures how long a worker is silent. Times are time.monotonic()."""

    def __init__(self, now: float) -> None:
        self._looked = self._since = now

    def measure_silence(self, last_beat: float, now: float) -> float:
        """Return how long a worker has had no heartbeat while the engine looked.

        An engine that has not looked for a while was itself stopped, and perhaps its workers too, as in a
        paused container. So the workers' silence counts from its first look on.
        """
        if now - self._looked > LOOK_SECONDS:
            self._since = now
        self._looked = now
        return now - max(last_beat, self._since)


def keep_beating(heartbeats: Heartbeats, worker: int, read_progress: Callable[[], int]) -> None:
    """Write heartbeats from a thread of its own, as long as the process runs.

    A long step is no silence: its progress shows that it goes on. A stopped process is silent.
    """

    def beat() -> None:
        while True:
            heartbeats.beat(worker, read_progress(), monotonic())
            sleep(BEAT_SECONDS)

    Thread(target=beat, name="heartbeats", daemon=True).start()
