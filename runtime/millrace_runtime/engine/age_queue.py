"""The order of service: sequences by age, the oldest first."""

import bisect
from collections.abc import Iterator
from operator import attrgetter

from millrace_runtime.engine.sequence import Sequence

_age = attrgetter("age")


class AgeQueue:
    """A collection of sequences, the oldest first. A preempted sequence gets its old place back."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def oldest(self) -> Sequence | None:
        """The oldest sequence; None of an empty queue."""
        return self._sequences[0] if self._sequences else None

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence by its age."""
        bisect.insort(self._sequences, sequence, key=_age)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, which must be in the queue."""
        index = bisect.bisect_left(self._sequences, sequence.age, key=_age)
        assert self._sequences[index] is sequence
        del self._sequences[index]
