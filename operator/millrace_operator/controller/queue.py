"""The queue between watches and workers: each key once, urgent keys mostly first, one worker for a key.

An event of a key that rested is handled at once. The following ones are handled together, PAUSE_SECONDS after
the last work began: 500 edits in five seconds are six reconciles.
"""

import asyncio
import heapq
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import Enum, auto
from typing import NamedTuple

from millrace_operator.kube.kinds import ServiceKey

MOST_STALE = 32
"""So many outdated times may stay in the heap, and as many more as there are keys."""


class Waits:
    """Owner of the times at which keys become due, in seconds of any clock."""

    def __init__(self) -> None:
        self._due: dict[ServiceKey, float] = {}
        self._heap: list[tuple[float, ServiceKey]] = []

    def clear(self) -> None:
        """Forget all of them."""
        self._due.clear()
        self._heap.clear()

    def wait_until(self, key: ServiceKey, due: float) -> None:
        """Let `key` become due then. Of several such times the earliest counts."""
        if due >= self._due.get(key, math.inf):
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > MOST_STALE + 2 * len(self._due):
            self._heap = [(at, each) for each, at in self._due.items()]
            heapq.heapify(self._heap)

    def find_next(self) -> float | None:
        """Return the first time at which a key becomes due; None if none waits."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[ServiceKey]:
        """Yield the due keys, the earliest first, and forget their times."""
        while (due := self.find_next()) is not None and due <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            yield key


BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_LAST_SECONDS = 300.0
BACKOFF_JITTER = 0.2
"""The largest part that chance adds to a wait, so that keys that failed together come back one by one."""
PAUSE_SECONDS = 1.0
"""From the beginning of one work on a key to the next one that only events ask for."""
LISTED_TURN = 4
"""Each fourth key is a listed one, or a busy cluster would never handle the listed keys."""


class Cause(Enum):
    """Why a key is added."""

    EVENT = auto()
    LISTING = auto()
    """A list has it. It is not urgent: events go first."""


class Tries(NamedTuple):
    """Successive attempts for one reason."""

    why: str
    number: int
    due: float = math.inf
    """The time of the next attempt, by the queue's clock."""


NO_TRIES = Tries("", 0)


class WorkQueue:
    """Keys of services to reconcile. A key that is added while a worker has it waits for that worker.

    The queue keeps keys only while it is open.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        pause_seconds: float = PAUSE_SECONDS,
        draw: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`draw` returns the chance in a wait, from 0 to 1. Without it each wait is as short as possible."""
        self._clock = clock
        self._draw = draw
        self._pause_seconds = pause_seconds
        self._is_open = False
        self._urgent: dict[ServiceKey, float] = {}
        self._later: dict[ServiceKey, float] = {}
        self._in_work: set[ServiceKey] = set()
        self._dirty: set[ServiceKey] = set()
        """Keys in work that were added again meanwhile."""
        self._tries: dict[ServiceKey, Tries] = {}
        self._waits = Waits()
        self._rests_until: dict[ServiceKey, float] = {}
        """Keys that a worker began within the pause, the earliest first."""
        self._num_taken = 0
        self._moved_at = clock()
        self._wake = asyncio.Event()
        self.num_added = 0
        self.num_retries = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._later)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep added keys while entered, and forget them at the end."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            for each in (self._urgent, self._later, self._waits, self._tries, self._rests_until):
                each.clear()

    def add(self, key: ServiceKey, cause: Cause = Cause.EVENT) -> None:
        """Add `key`, unless it waits already."""
        if not self._is_open:
            return
        rest = self._rests_until.get(key, 0.0) - self._clock()
        if key in self._in_work:
            self._dirty.add(key)
        elif rest > 0:
            self.add_after(key, rest)
        else:
            self._line_up(key, cause)

    def _line_up(self, key: ServiceKey, cause: Cause = Cause.EVENT) -> None:
        if key not in self._urgent and key not in self._later:
            self.num_added += 1
        if cause is Cause.EVENT:
            self._urgent.setdefault(key, self._later.pop(key, self._clock()))
        elif key not in self._urgent:
            self._later.setdefault(key, self._clock())
        self._wake.set()

    def add_after(self, key: ServiceKey, seconds: float) -> None:
        """Add `key` after some seconds. Of several such calls the earliest time counts."""
        if not self._is_open:
            return
        self._waits.wait_until(key, self._clock() + seconds)
        self._wake.set()

    def retry(
        self,
        key: ServiceKey,
        at_least_seconds: float = 0.0,
        at_most_seconds: float = BACKOFF_LAST_SECONDS,
        *,
        why: str = "",
    ) -> float:
        """Add `key` again, each time after twice the wait. Return the wait in seconds.

        Chance makes it up to BACKOFF_JITTER longer, even beyond `at_most_seconds`.

        Only successive attempts for the same reason count. So a key that was refused for an hour is retried
        soon after a conflict.
        """
        tries = self._tries.get(key, NO_TRIES)
        number = tries.number if tries.why == why else 0
        self.num_retries += 1
        doubled = BACKOFF_FIRST_SECONDS * 2.0 ** min(number, 16)
        wait = max(at_least_seconds, min(at_most_seconds, doubled)) * (1.0 + BACKOFF_JITTER * self._draw())
        self._tries[key] = Tries(why, number + 1, self._clock() + wait)
        self.add_after(key, wait)
        return wait

    def resume(self, key: ServiceKey) -> None:
        """Add `key` again when its next attempt is due: the work in between has attempted nothing."""
        if key in self._tries:
            self.add_after(key, max(0.0, self._tries[key].due - self._clock()))

    def forget_failures(self, key: ServiceKey) -> None:
        """Make the next failure of `key` wait as long as a first one."""
        self._tries.pop(key, None)

    async def get(self) -> ServiceKey:
        """Wait for a key and return it. No other worker gets it before a call of `done` with it.

        Each key comes after a turn of the event loop. A reconcile of a settled service awaits nothing, so a
        restart with 2,000 services would otherwise take the loop for longer than the Lease lasts. Then the
        leader loses the Lease, lists all again, and sees no edit meanwhile (0 reconciles in 27 s, measured).
        """
        await asyncio.sleep(0)
        while True:
            timeout = self.seconds_to_next()
            if len(self):
                return self._take()
            self._wake.clear()
            # Not asyncio.wait_for: that of Python 3.11 loses a cancellation that comes with the key.
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._wake.wait()

    def _take(self) -> ServiceKey:
        self._num_taken += 1
        is_listed_ones_turn = self._num_taken % LISTED_TURN == 0 or not self._urgent
        lane = self._later if self._later and is_listed_ones_turn else self._urgent
        key = next(iter(lane))
        del lane[key]
        self._in_work.add(key)
        self._moved_at = self._clock()
        self._begin_rest(key)
        return key

    def _begin_rest(self, key: ServiceKey) -> None:
        self._rests_until.pop(key, None)
        while self._rests_until and next(iter(self._rests_until.values())) <= self._moved_at:
            del self._rests_until[next(iter(self._rests_until))]
        self._rests_until[key] = self._moved_at + self._pause_seconds

    @asynccontextmanager
    async def work(self) -> AsyncIterator[ServiceKey]:
        """Wait for a key and work on it while entered."""
        key = await self.get()
        try:
            yield key
        finally:
            self.done(key)

    def done(self, key: ServiceKey) -> None:
        """End the work on a key. If it was added meanwhile, it waits again."""
        self._in_work.discard(key)
        self._moved_at = self._clock()
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def stalled_seconds(self) -> float:
        """Return for how long keys have waited while no worker took or ended one; 0 if none waits.

        The age of the oldest key would say less: a takeover queues every service at once.
        """
        waiting = [*self._urgent.values(), *self._later.values()]
        return self._clock() - max(self._moved_at, min(waiting)) if waiting else 0.0

    def seconds_to_next(self) -> float | None:
        """Return the seconds until there is a key to work on; None if none waits."""
        now = self._clock()
        self._promote(now)
        if self._urgent or self._later:
            return 0.0
        due = self._waits.find_next()
        return None if due is None else due - now

    def _promote(self, now: float) -> None:
        """Move due keys into the urgent lane."""
        for key in self._waits.pop_due(now):
            if key in self._in_work:
                self._dirty.add(key)
            else:
                self._line_up(key)
