"""The gateway's phase: starting, serving or draining. A signal begins the drain, a second one ends it."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class Phase(Enum):
    """A phase, with the text that `/readyz` answers."""

    STARTING = "starting: the services and replicas are not listed yet"
    SERVING = "ok"
    DRAINING = "draining: requests in flight are finished, then the gateway exits"


class ClientServer(Protocol):
    """The server of the clients' port, as a drain needs it."""

    is_draining: bool
    """Whether each connection closes after its answer."""

    def stop_accepting(self) -> None:
        """Accept no more connections."""

    async def stop(self) -> None:
        """Accept nothing more, and wait until every client has read its answer, or stalls."""


class Lifecycle:
    """Owner of the phase, of the number of requests in flight, and of the order of a drain's steps."""

    def __init__(self) -> None:
        self._unsynced: set[str] = set()
        self._is_draining = False
        self._num_begun = 0
        self.num_in_flight = 0
        """Requests whose answer has not ended."""
        self._idle = asyncio.Event()
        """Set while no request is in flight."""
        self._idle.set()

    def begin(self) -> None:
        """Count a request in flight; the caller counts its end."""
        self._num_begun += 1
        self.num_in_flight += 1
        if self.num_in_flight == 1:
            self._idle.clear()

    def end(self) -> None:
        """Count the end of a request that has begun."""
        self.num_in_flight -= 1
        if not self.num_in_flight:
            self._idle.set()

    def await_sync(self, name: str) -> None:
        """Keep the gateway unready until the collection of this name has been listed."""
        self._unsynced.add(name)

    def note_sync(self, name: str) -> None:
        """Record that the collection of this name has been listed."""
        self._unsynced.discard(name)

    async def drain(
        self,
        clients: ClientServer,
        *,
        release_waiting: Callable[[], None],
        notice_seconds: float,
        idle_seconds: float,
    ) -> None:
        """Become unready, accept requests that still arrive for a while, then finish those in flight.

        `release_waiting` lets go of the requests that wait in the gateway.
        """
        self.begin_drain()
        clients.is_draining = True
        logger.info("draining: %d requests in flight", self.num_in_flight)
        await asyncio.sleep(notice_seconds)
        clients.stop_accepting()
        release_waiting()
        await self._wait_idle(idle_seconds)
        await clients.stop()

    async def _wait_idle(self, seconds: float) -> None:
        """Return once no request has been in flight for so long."""
        is_still_idle = False
        while not is_still_idle:
            await self._idle.wait()
            num_begun = self._num_begun
            await asyncio.sleep(seconds)
            is_still_idle = self._idle.is_set() and self._num_begun == num_begun

    def begin_drain(self) -> None:
        """Become unready."""
        self._is_draining = True

    @property
    def is_synced(self) -> bool:
        """Whether every awaited collection has been listed once."""
        return not self._unsynced

    @property
    def phase(self) -> Phase:
        """The present phase."""
        if self._is_draining:
            return Phase.DRAINING
        return Phase.SERVING if self.is_synced else Phase.STARTING


class Signals:
    """SIGTERM and SIGINT, in their order, from now on."""

    def __init__(self) -> None:
        self._arrivals: asyncio.Queue[int] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrivals.put_nowait, number)

    async def run_until_drained(
        self, serving: Coroutine[Any, Any, None], drain: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        """Serve until a signal, then drain until all is done or a second signal comes; then end both.

        Returns whether all is done. Raises what `serving` raises.
        """
        tasks = [asyncio.create_task(serving)]
        if not await self._precede(tasks[0]):
            tasks[0].result()  # it ends only by a bug of ours, which this raises
        tasks.append(asyncio.create_task(drain()))
        is_drained = not await self._precede(tasks[1])
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return is_drained

    async def _precede(self, task: asyncio.Task[None]) -> bool:
        """Wait for a signal or the task's end. Return whether the signal came first."""
        arrival = asyncio.create_task(self._arrivals.get())
        await asyncio.wait({arrival, task}, return_when=asyncio.FIRST_COMPLETED)
        is_first = arrival.done()
        arrival.cancel()
        return is_first
