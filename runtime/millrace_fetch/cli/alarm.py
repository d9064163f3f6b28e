"""Ends a fetch that nothing moves any more: it waits for a lock, or for a disk that does not answer.

A thread sees that, and ends the process: what waits for a dead disk can't be cancelled, be it the event loop
itself. Who started the fetch then sees why, and starts it again.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Self

from millrace_fetch.transfer.watcher import Watch

LIMIT_SECONDS = 4500.0
"""More than a source may ask to be left alone for, an hour, and than a hash of 500 GB takes."""
TICK_SECONDS = 5.0
EXIT_STUCK = 1


def _end(reason: str) -> None:
    sys.stderr.write(f"millrace fetch: {reason}\n")
    sys.stderr.flush()
    os._exit(EXIT_STUCK)


class Alarm:
    """Passes on what it is told, and ends the process where it is told nothing for too long."""

    def __init__(self, watch: Watch, folder: object, end: Callable[[str], None] = _end) -> None:
        self._watch = watch
        self._folder = folder
        self._end = end
        self._waited_seconds = 0.0
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _run(self) -> None:
        # By ticks and no clock: a process that was stopped has not waited.
        while not self._is_over.wait(TICK_SECONDS):
            self._waited_seconds += TICK_SECONDS
            if self._waited_seconds >= LIMIT_SECONDS:
                self._end(
                    f"nothing has come for {LIMIT_SECONDS / 60:g} minutes: either {self._folder} is on a "
                    "disk that does not answer: mend the volume; or another millrace fetch holds it: if that "
                    "one's log shows no progress, delete its pod"
                )
                return

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Something has moved."""
        self._waited_seconds = 0.0
        self._watch.begin(total_bytes, done_bytes)

    def advance(self, num_bytes: int) -> None:
        """Bytes have come."""
        self._waited_seconds = 0.0
        self._watch.advance(num_bytes)

    def say(self, text: str) -> None:
        """The source is tried again, or asks for quiet."""
        self._waited_seconds = 0.0
        self._watch.say(text)
