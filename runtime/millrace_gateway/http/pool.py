"""Connections to replicas: idle ones to use again, and busy ones to end when their pod is gone.

A replica keeps an idle connection longer than the gateway, so it does not close one that the gateway just
uses. If a connection ends after a request was sent, it has failed, and the gateway does not send the request
again.
"""

import asyncio
import errno
from collections.abc import Callable

from millrace_gateway.errors import ExhaustedError, ReplicaRefusedError
from millrace_gateway.http.replica_connection import ReplicaConnection

MAX_IDLE = 256
"""Idle connections to one replica."""
OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Descriptors, memory or ports that this process or its node lacks: that says nothing of a replica."""


class Pool:
    """Owner of all connections to replicas, by the pod's uid: an address may go to another pod."""

    def __init__(self, *, connect_seconds: float, idle_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._idle: dict[str, list[ReplicaConnection]] = {}
        self._busy: dict[str, set[ReplicaConnection]] = {}
        self._check: asyncio.TimerHandle | None = None

    def take(self, uid: str) -> ReplicaConnection | None:
        """Return an idle connection to the replica, now busy; None if there is none."""
        idle = self._idle.get(uid)
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        while idle:
            connection = idle.pop()
            if connection.is_reusable and connection.idle_since > oldest:
                self._note_busy(uid, connection)
                return connection
            connection.abort()
        return None

    async def connect(self, uid: str, address: str, port: int) -> ReplicaConnection:
        """Return a new connection to the replica, now busy. Raises ReplicaRefusedError and ExhaustedError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(ReplicaConnection, address, port)
        except OSError as error:  # of which TimeoutError is one
            if error.errno in OWN_FAULTS:
                text = f"The gateway can't connect to a replica: {error.strerror}. Send the request again."
                raise ExhaustedError(text, retry_after_seconds=1) from error
            raise ReplicaRefusedError(str(error) or "the connection took too long") from error
        if not connection.is_open:  # nothing has been sent
            raise ReplicaRefusedError("it closed the connection at once")
        self._note_busy(uid, connection)
        return connection

    def give_back(self, uid: str, connection: ReplicaConnection) -> None:
        """Note the end of an exchange: the connection is kept if it can be used again, else it ends."""
        busy = self._busy.get(uid)
        if busy is not None:
            busy.discard(connection)
            if not busy:
                del self._busy[uid]
        idle = self._idle.setdefault(uid, [])
        if connection.is_reusable and len(idle) < MAX_IDLE:
            loop = asyncio.get_running_loop()
            connection.rest(loop.time())
            idle.append(connection)
            if self._check is None:
                self._check = loop.call_later(self._idle_seconds / 2, self._end_idle, loop.time)
        else:
            connection.abort()

    def end(self, uid: str) -> None:
        """End all connections to a replica that is gone: its clients learn that their answers are cut."""
        for connection in self._idle.pop(uid, ()):
            connection.abort()
        for connection in list(self._busy.get(uid, ())):
            connection.connection_lost(None)
            connection.abort()

    def close(self) -> None:
        """End all connections."""
        for uid in {*self._idle, *self._busy}:
            self.end(uid)
        if self._check is not None:
            self._check.cancel()

    def _note_busy(self, uid: str, connection: ReplicaConnection) -> None:
        busy = self._busy.get(uid)
        if busy is None:
            busy = self._busy[uid] = set()
        busy.add(connection)

    def _end_idle(self, now: Callable[[], float]) -> None:
        before = now() - self._idle_seconds
        for uid, idle in list(self._idle.items()):
            kept = [one for one in idle if one.is_reusable and one.idle_since > before]
            for connection in set(idle).difference(kept):
                connection.abort()
            if kept:
                self._idle[uid] = kept
            else:
                del self._idle[uid]
        self._check = None
        if self._idle:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(self._idle_seconds / 2, self._end_idle, now)
