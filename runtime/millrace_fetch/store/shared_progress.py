"""How far the fetch of a folder is, for those who wait for its lock: a small file in the folder.

Only who holds the lock writes the file. It has counts and no time, so a fetch that gets no farther changes
nothing in it. Who takes the lock removes what a killed fetch left there.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from millrace_fetch.store.links import NOFOLLOW
from millrace_fetch.transfer.watcher import Watch

PERIOD_SECONDS = 1.0
"""Between two writes of the file: the operator asks each pod every two seconds."""
_MOST_BYTES = 256
_MOST_COUNT = 2**60
_READ = os.O_RDONLY | os.O_NONBLOCK | NOFOLLOW
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | NOFOLLOW
"""Neither waits for the other end of a pipe."""


class Counts(NamedTuple):
    """How far a fetch is."""

    total_bytes: int | None
    """None where the source does not tell it."""
    done_bytes: int


class Shared:
    """Passes on what it is told, and writes the counts down for those who wait."""

    def __init__(self, watch: Watch, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._watch = watch
        self._path = path
        self._clock = clock
        self._total: int | None = None
        self._done = 0
        self._written_at = 0.0

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Begin to count, with what is there."""
        self._total, self._done = total_bytes, done_bytes
        self._write()
        self._watch.begin(total_bytes, done_bytes)

    def advance(self, num_bytes: int) -> None:
        """Count. The last bytes are written down too: after them come checks that take their time."""
        self._done += num_bytes
        if self._done == self._total or self._clock() >= self._written_at + PERIOD_SECONDS:
            self._write()
        self._watch.advance(num_bytes)

    def follow(self, total_bytes: int | None, done_bytes: int) -> None:
        """Pass it on."""
        self._watch.follow(total_bytes, done_bytes)

    def say(self, text: str) -> None:
        """Pass it on."""
        self._watch.say(text)

    def _write(self) -> None:
        """Write the counts. Where that fails nobody is told, and the fetch goes on."""
        self._written_at = self._clock()
        text = json.dumps({"totalBytes": self._total, "doneBytes": self._done})
        with suppress(OSError), _opened(self._path, _WRITE) as descriptor:
            os.write(descriptor, text.encode())


class Follower:
    """Tells a watch how far the fetch is that this one waits for, each time that it is farther."""

    def __init__(self, watch: Watch, path: Path) -> None:
        self._watch = watch
        self._path = path
        self._told: Counts | None = None

    def look(self) -> None:
        """Read the counts, and tell them where they are others than before."""
        counts = read_counts(self._path)
        if counts is not None and counts != self._told:
            self._told = counts
            self._watch.follow(*counts)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file while entered. Raises OSError, also where something else has its name."""
    descriptor = os.open(path, flags, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def read_counts(path: Path) -> Counts | None:
    """Return what the file says; None where it says nothing, or nothing that can be so."""
    try:
        with _opened(path, _READ) as descriptor:
            found = json.loads(os.read(descriptor, _MOST_BYTES))
        counts = Counts(found.get("totalBytes"), found["doneBytes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # it is just being written, or others wrote it
    most = _MOST_COUNT - 1 if counts.total_bytes is None else counts.total_bytes
    is_sound = all(type(count) is int and 0 <= count < _MOST_COUNT for count in (most, counts.done_bytes))
    return counts if is_sound and counts.done_bytes <= most else None
