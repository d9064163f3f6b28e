"""Holds requests of services that have no replica until one is Ready: bounded in number, bytes and time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millrace_gateway.objects import ServiceKey


@dataclass(frozen=True)
class HoldLimits:
    """What is held at most, of all services together."""

    most: int = 1024
    """Requests."""
    most_bytes: int = 256 * 1024 * 1024
    """Of their bodies."""
    share: float = 0.25
    """Of both, what a single service may have: one that never starts leaves room for the others."""


class Holder:
    """Owner of the requests that wait. `on_hold` is called when one begins to."""

    def __init__(self, limits: HoldLimits, on_hold: Callable[[], None]) -> None:
        self._limits = limits
        self._on_hold = on_hold
        self._nums: Counter[ServiceKey] = Counter()
        self._bytes: Counter[ServiceKey] = Counter()
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    @property
    def num_held(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def has_room(self, key: ServiceKey, num_bytes: int) -> bool:
        """Whether another request of the service can be held."""
        limits = self._limits
        nums, sizes = self._nums.total() + 1, self._bytes.total() + num_bytes
        own_num, own_bytes = self._nums[key] + 1, self._bytes[key] + num_bytes
        is_fair = own_num <= limits.share * limits.most and own_bytes <= limits.share * limits.most_bytes
        return is_fair and nums <= limits.most and sizes <= limits.most_bytes

    async def wait(self, key: ServiceKey, num_bytes: int, seconds: float, may_go: Callable[[], bool]) -> None:
        """Wait until a request of the service may go on, for so many seconds at most."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._count(key, num_bytes, arrival, may_go):
            self._on_hold()
            try:
                async with asyncio.timeout(seconds):
                    await arrival
            except TimeoutError:
                return

    def release(self) -> None:
        """Let every request go on that may."""
        for arrival, may_go in self._waiting.items():
            if not arrival.done() and may_go():
                arrival.set_result(None)

    @contextmanager
    def _count(
        self, key: ServiceKey, num_bytes: int, arrival: asyncio.Future[None], may_go: Callable[[], bool]
    ) -> Iterator[None]:
        self._waiting[arrival] = may_go
        self._nums[key] += 1
        self._bytes[key] += num_bytes
        try:
            yield
        finally:
            del self._waiting[arrival]
            self._nums -= Counter({key: 1})  # what is zero goes
            self._bytes -= Counter({key: num_bytes})
