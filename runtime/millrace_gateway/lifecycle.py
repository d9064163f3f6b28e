"""Where the gateway stands between its start and its exit."""

import asyncio
from collections.abc import Iterable
from enum import Enum


class Phase(Enum):
    """What `/readyz` answers."""

    STARTING = "starting: the services and replicas are not listed yet"
    SERVING = "ok"
    DRAINING = "draining: requests in flight are finished, then the gateway exits"


class Lifecycle:
    """Owner of the phase and of the number of requests in flight."""

    def __init__(self, awaited: Iterable[str] = ()) -> None:
        """Begin; `awaited` names what must be listed once before the gateway is ready."""
        self._unsynced = set(awaited)
        self._is_draining = False
        self.num_in_flight = 0
        """Requests received and not answered to their end."""
        self.idle = asyncio.Event()
        """Set while there is none."""
        self.idle.set()

    def begin_request(self) -> None:
        """Count a request that was received."""
        self.num_in_flight += 1
        self.idle.clear()

    def end_request(self) -> None:
        """Count it off, however it ended."""
        self.num_in_flight -= 1
        if not self.num_in_flight:
            self.idle.set()

    def note_sync(self, name: str) -> None:
        """Note that its first list arrived."""
        self._unsynced.discard(name)

    def begin_drain(self) -> None:
        """Leave: not ready any more, and connections close after their answer."""
        self._is_draining = True

    @property
    def is_synced(self) -> bool:
        """Whether an unknown name is truly unknown."""
        return not self._unsynced

    @property
    def phase(self) -> Phase:
        """Where the gateway stands now."""
        if self._is_draining:
            return Phase.DRAINING
        return Phase.SERVING if self.is_synced else Phase.STARTING
