"""Holds requests of services that have no replica until one is Ready: bounded in number, bytes and time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from millrace_gateway.catalogue import Catalogue, Route


@dataclass(frozen=True)
class HoldLimits:
    """What is held at most, of all services together."""

    most: int = 1024
    """Requests."""
    most_bytes: int = 256 * 1024 * 1024
    """Of their bodies."""


class Holder:
    """Owner of the requests that wait. `on_hold` is called when one begins to."""

    def __init__(self, catalogue: Catalogue, limits: HoldLimits, on_hold: Callable[[], None]) -> None:
        self._catalogue = catalogue
        self._limits = limits
        self._on_hold = on_hold
        self._num_bytes = 0
        self._waiting: dict[asyncio.Future[None], Route] = {}

    @property
    def num_held(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def has_room(self, num_bytes: int) -> bool:
        """Whether another request can be held."""
        return (
            len(self._waiting) < self._limits.most and self._num_bytes + num_bytes <= self._limits.most_bytes
        )

    async def wait(self, route: Route, num_bytes: int, seconds: float) -> bool:
        """Wait until the route has a replica. Return whether it has, within so many seconds."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[arrival] = route
        self._num_bytes += num_bytes
        self._on_hold()
        try:
            async with asyncio.timeout(seconds):
                await arrival
        except TimeoutError:
            return False
        finally:
            del self._waiting[arrival]
            self._num_bytes -= num_bytes
        return True

    def release(self) -> None:
        """Let every request go on whose route has a replica now."""
        for arrival, route in self._waiting.items():
            if not arrival.done() and self._catalogue.ready_replicas(route):
                arrival.set_result(None)
