"""When keys are due: at the earliest time that somebody asked for, or once their edits have ended."""

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

from millrace_operator.cluster.kinds import ServiceKey

EDITS_SECONDS = 5.0
"""The most that an edit waits for those after it."""
MOST_STALE = 32
"""Of the times that keys wait for, beside as many as there are keys: what another one has replaced."""


class Due(NamedTuple):
    """A key whose time has come, and whether edits alone have waited for it."""

    key: ServiceKey
    is_of_edits: bool


class Waits:
    """Owner of the times that keys wait for, in seconds of any clock."""

    def __init__(self) -> None:
        self._due: dict[ServiceKey, float] = {}
        self._edits: dict[ServiceKey, float] = {}
        """When edits are due; each further one puts that off."""
        self._latest: dict[ServiceKey, float] = {}
        """Until when that can be put off. It counts until a work has taken the edits up."""
        self._heap: list[tuple[float, ServiceKey]] = []

    def clear(self) -> None:
        """Forget all of them."""
        for each in (self._due, self._edits, self._latest, self._heap):
            each.clear()

    def wait_until(self, key: ServiceKey, due: float) -> None:
        """Let `key` be due then. Of several such times the earliest counts."""
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            self._push(key, due)

    def wait_for_edits(self, key: ServiceKey, now: float, pause_seconds: float) -> None:
        """Let `key` be due after this pause, for an edit of now. The next edit puts that off, to a bound."""
        latest = self._latest.setdefault(key, now + EDITS_SECONDS)
        self._edits[key] = min(now + pause_seconds, latest)
        self._push(key, self._edits[key])

    def has_edits(self, key: ServiceKey) -> bool:
        """Whether edits of `key` wait for others."""
        return key in self._edits

    def may_wait(self, key: ServiceKey, now: float) -> bool:
        """Whether edits of `key` may be put off still."""
        return now < self._latest.get(key, math.inf)

    def take_edits(self, key: ServiceKey) -> None:
        """Know that the edits of `key` are being worked on, which may fail."""
        self._edits.pop(key, None)

    def settle_edits(self, key: ServiceKey) -> None:
        """Know that they have been taken up."""
        self._latest.pop(key, None)

    def find_next(self) -> float | None:
        """Return the first time at which a key is due; None where none waits."""
        while self._heap and not self._is_valid(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[Due]:
        """Yield the keys that are due, the first one first, and forget their times."""
        while (due := self.find_next()) is not None and due <= now:
            _, key = heapq.heappop(self._heap)
            is_of_other = self._due.get(key) == due
            if is_of_other:
                del self._due[key]
            if self._edits.get(key) == due:
                del self._edits[key]
            yield Due(key, not is_of_other)

    def _push(self, key: ServiceKey, due: float) -> None:
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > MOST_STALE + 2 * (len(self._due) + len(self._edits)):
            self._heap = [(at, each) for times in (self._due, self._edits) for each, at in times.items()]
            heapq.heapify(self._heap)

    def _is_valid(self, due: float, key: ServiceKey) -> bool:
        return due in (self._due.get(key), self._edits.get(key))
