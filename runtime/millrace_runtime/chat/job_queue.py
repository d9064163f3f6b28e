"""The order of the text worker's jobs: small ones overtake large ones, which get their turns. Pure."""

from collections import deque
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A job that knows how long its frame is."""

    @property
    def num_bytes(self) -> int:
        """The bytes of its frame."""


Job = TypeVar("Job", bound=Sized)
SMALL_BYTES = 128 << 10
"""A job of this size takes some milliseconds; one of 8 MiB takes seconds."""
_SMALL_IN_A_ROW = 8
"""As many small jobs overtake a large one that waits."""


class JobQueue(Generic[Job]):
    """Jobs in order of arrival, small and large apart."""

    def __init__(self) -> None:
        self._small: deque[Job] = deque()
        self._large: deque[Job] = deque()
        self._num_overtaking = 0

    def __len__(self) -> int:
        return len(self._small) + len(self._large)

    def add(self, job: Job) -> None:
        """Add a job behind those of its kind."""
        (self._small if job.num_bytes <= SMALL_BYTES else self._large).append(job)

    def remove(self, job: Job) -> None:
        """Take a job out. Raises ValueError if it is not here."""
        (self._small if job.num_bytes <= SMALL_BYTES else self._large).remove(job)

    def pop(self) -> Job:
        """Take the next job. Raises IndexError without one."""
        if self._small and (not self._large or self._num_overtaking < _SMALL_IN_A_ROW):
            self._num_overtaking += 1
            return self._small.popleft()
        self._num_overtaking = 0
        return self._large.popleft()
