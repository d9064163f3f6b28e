"""The gateway's phase: starting, serving or draining."""

import asyncio
from enum import Enum


class Phase(Enum):
    """A phase, with the text that `/readyz` answers."""

    STARTING = "starting: the services and replicas are not listed yet"
    SERVING = "ok"
    DRAINING = "draining: requests in flight are finished, then the gateway exits"


class Lifecycle:
    """Owner of the phase and of the number of requests in flight."""

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

    async def wait_idle(self, seconds: float) -> None:
        """Return once no request has been in flight for so long."""
        is_still_idle = False
        while not is_still_idle:
            await self._idle.wait()
            num_begun = self._num_begun
            await asyncio.sleep(seconds)
            is_still_idle = self._idle.is_set() and self._num_begun == num_begun

    def await_sync(self, name: str) -> None:
        """Keep the gateway unready until the collection of this name has been listed."""
        self._unsynced.add(name)

    def note_sync(self, name: str) -> None:
        """Record that the collection of this name has been listed."""
        self._unsynced.discard(name)

    def begin_drain(self) -> None:
        """Become unready. From now on each connection closes after its answer."""
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
