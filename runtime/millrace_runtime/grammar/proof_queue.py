"""Which proofs run: short ones never wait for long ones. Pure.

How long a proof takes shows only while it runs. So each begins at the first level, whose time is short. One
that needs more begins again at the next level. At each level one runs at a time, in order of arrival.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class DueProof(NamedTuple, Generic[Key]):
    """A proof that begins now."""

    key: Key
    level: int


class _Level(Generic[Key]):
    def __init__(self) -> None:
        self.waiting: deque[Key] = deque()
        self.running: Key | None = None


class ProofQueue(Generic[Key]):
    """The proofs that wait and run, by level."""

    def __init__(self, num_levels: int) -> None:
        self._levels: Sequence[_Level[Key]] = [_Level() for _ in range(num_levels)]

    def add(self, key: Key) -> None:
        """Add a proof to the first level."""
        self._levels[0].waiting.append(key)

    def start_due(self) -> list[DueProof[Key]]:
        """Return the proofs that begin now."""
        due = []
        for number, level in enumerate(self._levels):
            if level.running is None and level.waiting:
                level.running = level.waiting.popleft()
                due.append(DueProof(level.running, number))
        return due

    def remove(self, key: Key) -> None:
        """Take a proof out that has ended, or that nobody wants any more, whether it runs or waits."""
        for level in self._levels:
            if level.running == key:
                level.running = None
            elif key in level.waiting:
                level.waiting.remove(key)

    def promote(self, key: Key) -> bool:
        """Move a running proof, whose time is over, to the next level. Return False if there is none."""
        number = next(number for number, level in enumerate(self._levels) if level.running == key)
        self._levels[number].running = None
        if number + 1 == len(self._levels):
            return False
        self._levels[number + 1].waiting.append(key)
        return True
