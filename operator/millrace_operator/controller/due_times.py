"""When keys are due: at the earliest time that somebody asked for."""

import heapq
import math
from collections.abc import Iterator

from millrace_operator.kube.kinds import ServiceKey

MOST_STALE = 32
"""Of the times that keys wait for, beside as many as there are keys: what an earlier one has replaced."""


class Waits:
    """Owner of the times that keys wait for, in seconds of any clock."""

    def __init__(self) -> None:
        self._due: dict[ServiceKey, float] = {}
        self._heap: list[tuple[float, ServiceKey]] = []

    def clear(self) -> None:
        """Forget all of them."""
        self._due.clear()
        self._heap.clear()

    def wait_until(self, key: ServiceKey, due: float) -> None:
        """Let `key` be due then. Of several such times the earliest counts."""
        if due >= self._due.get(key, math.inf):
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > MOST_STALE + 2 * len(self._due):
            self._heap = [(at, each) for each, at in self._due.items()]
            heapq.heapify(self._heap)

    def find_next(self) -> float | None:
        """Return the first time at which a key is due; None where none waits."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[ServiceKey]:
        """Yield the keys that are due, the first one first, and forget their times."""
        while (due := self.find_next()) is not None and due <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            yield key
