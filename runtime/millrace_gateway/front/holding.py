"""Holds requests for services without a replica until one is Ready, within limits of number and time.

The memory of their bodies counts in the budget of all bodies.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from millrace_gateway.route.objects import ServiceKey


@dataclass(frozen=True)
class HoldLimits:
    """The limits of held requests, for all services together."""

    most: int = 1024
    """Number of requests."""
    share: float = 0.25
    """The share of one service: one that never starts leaves room for the others."""
    namespace_share: float = 0.5
    """The share of all services of a namespace together."""


class Awaited(NamedTuple):
    """The condition for which a request waits."""

    services: Collection[ServiceKey]
    """Services with the same model name: a replica of any of them may take the request."""
    may_go: Callable[[], bool]
    """Whether the request may continue."""


class Holder:
    """Owner of the waiting requests. It calls `on_hold` when a request starts to wait."""

    def __init__(self, limits: HoldLimits, on_hold: Callable[[], None]) -> None:
        self._limits = limits
        self._on_hold = on_hold
        self._nums: Counter[ServiceKey] = Counter()
        self._waiting: dict[asyncio.Future[None], Awaited] = {}
        self._waiting_for: dict[ServiceKey, dict[asyncio.Future[None], None]] = {}
        """The same by the services for which they wait, the oldest first."""
        self._is_closed = False

    @property
    def num_held(self) -> int:
        """The number of waiting requests."""
        return len(self._waiting)

    def has_room(self, key: ServiceKey) -> bool:
        """Whether another request of the service can be held."""
        limits = self._limits
        beside = {other for other in self._nums if other.namespace == key.namespace}
        fits = (
            self._fits({key}, limits.share),
            self._fits(beside, limits.namespace_share),
            self._fits(self._nums, 1.0),
        )
        return all(fits) and not self._is_closed

    async def wait(self, key: ServiceKey, seconds: float, awaited: Awaited) -> bool:
        """Wait at most `seconds` until a request of the service may continue. Return whether it may."""
        if awaited.may_go() or self._is_closed:
            return awaited.may_go()
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._count(key, arrival, awaited):
            self._on_hold()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await arrival
        return awaited.may_go()

    def release(self, keys: Collection[ServiceKey] | None = None) -> None:
        """Continue each request for these services (None: for any) that may continue."""
        arrivals = self._waiting if keys is None else self._find_arrivals(keys)
        for arrival in arrivals:
            if not arrival.done() and (self._is_closed or self._waiting[arrival].may_go()):
                arrival.set_result(None)

    def _find_arrivals(self, keys: Iterable[ServiceKey]) -> Iterable[asyncio.Future[None]]:
        found: dict[asyncio.Future[None], None] = {}
        for key in keys:
            found |= self._waiting_for.get(key, {})
        return found

    def close(self) -> None:
        """Hold no more requests: this gateway ends, and another one can hold them."""
        self._is_closed = True
        self.release()

    def _fits(self, keys: Iterable[ServiceKey], share: float) -> bool:
        """Whether one more request of these services fits into their share."""
        num = 1 + sum(self._nums[key] for key in keys)
        return num <= share * self._limits.most

    @contextmanager
    def _count(self, key: ServiceKey, arrival: asyncio.Future[None], awaited: Awaited) -> Iterator[None]:
        self._waiting[arrival] = awaited
        for service in awaited.services:
            self._waiting_for.setdefault(service, {})[arrival] = None
        self._nums[key] += 1
        try:
            yield
        finally:
            del self._waiting[arrival]
            for service in awaited.services:
                del self._waiting_for[service][arrival]
                if not self._waiting_for[service]:
                    del self._waiting_for[service]
            self._nums -= Counter({key: 1})  # what is zero goes
