"""Holds requests for services without a replica until one is Ready, within limits of memory and time.

Their memory alone limits how many are held: each counts its body and its head in the budget of all bodies,
and at least HELD_BYTES, so that a namespace leaves room for the others with empty bodies, too.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from millrace_gateway.front.body_budget import BodyShare
from millrace_gateway.route.objects import ServiceKey

WOKEN_AT_ONCE = 32
"""Requests that wake in one turn of the event loop. Each connects to a replica or gets a refusal: three
thousand at once held up the streams for 0.2 to 0.4 s (by hand)."""
Arrival = asyncio.Future[None]


class Waker:
    """Wakes waiting requests, a few in each turn of the event loop."""

    def __init__(self) -> None:
        self._going: dict[Arrival, Callable[[], bool]] = {}
        """The requests to wake, the oldest first, each with a check whether it still may go: if not, it waits
        on."""
        self._has_woken = False
        """Whether some woke in this turn of the loop."""

    def wake(self, arrivals: dict[Arrival, Callable[[], bool]]) -> None:
        """Wake these: WOKEN_AT_ONCE if none has woken in this turn, and the rest in later turns."""
        self._going |= arrivals
        if self._going and not self._has_woken:
            self._wake_some()

    def _wake_some(self) -> None:
        self._has_woken = True
        asyncio.get_running_loop().call_soon(self._go_on)
        for arrival in list(islice(self._going, WOKEN_AT_ONCE)):
            may_go = self._going.pop(arrival)
            if not arrival.done() and may_go():
                arrival.set_result(None)

    def _go_on(self) -> None:
        self._has_woken = False
        if self._going:
            self._wake_some()


class Awaited(NamedTuple):
    """The condition for which a request waits."""

    services: tuple[ServiceKey, ...]
    """Services with the same model name: a replica of any of them may take the request."""
    may_go: Callable[[Collection[str]], bool]
    """Whether a request for them may continue that has tried the replicas with these uids."""
    tried: Collection[str] = ()
    """The uids of replicas that have refused this request."""

    def is_met(self) -> bool:
        """Whether this request may continue."""
        return self.may_go(self.tried)


class Holder:
    """Owner of the waiting requests. It calls `on_hold` when a request starts to wait.

    Requests for the same services wait in one group. A release asks once for all of a group whether a request
    may go that has tried no replica: if not, none may. So news of a service without a replica cost the same
    however many requests wait for one. Its first replica releases all of them, some in each turn of the loop.
    """

    def __init__(self, on_hold: Callable[[], None]) -> None:
        self._on_hold = on_hold
        self._groups: dict[tuple[ServiceKey, ...], dict[Arrival, Awaited]] = {}
        """The waiting requests by their services, the oldest first."""
        self._groups_of: dict[ServiceKey, set[tuple[ServiceKey, ...]]] = {}
        self._waker = Waker()
        self._is_closed = False

    @property
    def num_held(self) -> int:
        """The number of waiting requests."""
        return sum(map(len, self._groups.values()))

    def has_room(self, share: BodyShare) -> bool:
        """Whether the request of this share can be held. If so, its share counts all that it takes."""
        return not self._is_closed and share.hold()

    async def wait(self, seconds: float, awaited: Awaited) -> bool:
        """Wait at most `seconds` until a request may continue. Return whether it may."""
        if awaited.is_met() or self._is_closed:
            return awaited.is_met()
        arrival: Arrival = asyncio.get_running_loop().create_future()
        with self._count(arrival, awaited):
            self._on_hold()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await arrival
        return awaited.is_met()

    def release(self, keys: Collection[ServiceKey] | None = None) -> None:
        """Continue each request for these services (None: for any) that may continue."""
        if keys is None:
            found = set(self._groups)
        else:
            found = {group for key in keys for group in self._groups_of.get(key, ())}
        for services in found:
            self._release_group(self._groups[services])

    def close(self) -> None:
        """Hold no more requests: this gateway ends, and another one can hold them."""
        self._is_closed = True
        self.release()

    def _release_group(self, group: dict[Arrival, Awaited]) -> None:
        first = next(iter(group.values()))
        if not (self._is_closed or first.may_go(())):
            return
        self._waker.wake(
            {
                arrival: partial(self._may_go, awaited)
                for arrival, awaited in group.items()
                if not arrival.done() and (self._is_closed or not awaited.tried or awaited.is_met())
            }
        )

    def _may_go(self, awaited: Awaited) -> bool:
        return self._is_closed or awaited.is_met()

    @contextmanager
    def _count(self, arrival: Arrival, awaited: Awaited) -> Iterator[None]:
        services = awaited.services
        if services not in self._groups:
            self._groups[services] = {}
            for key in services:
                self._groups_of.setdefault(key, set()).add(services)
        self._groups[services][arrival] = awaited
        try:
            yield
        finally:
            del self._groups[services][arrival]
            if not self._groups[services]:
                self._forget(services)

    def _forget(self, services: tuple[ServiceKey, ...]) -> None:
        """Forget a group that is empty."""
        del self._groups[services]
        for key in services:
            self._groups_of[key].discard(services)
            if not self._groups_of[key]:
                del self._groups_of[key]
