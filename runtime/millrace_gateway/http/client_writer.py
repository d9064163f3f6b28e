"""The bytes on their way to one client: who writes them, and whether the client reads."""

import asyncio
from typing import Protocol

from millrace_gateway.http.sockets import count_unread


class Flow(Protocol):
    """What writes an answer, or reads on behind an upgrade."""

    def pause(self) -> None:
        """Pause: the client reads slowly."""

    def resume(self) -> None:
        """Continue: the client has read the pending bytes."""

    def leave(self) -> None:
        """The client has left."""

    def feed(self, data: bytes) -> None:
        """Take the client's bytes behind an upgrade."""


class ClientWriter:
    """Owner of what is written to one client. The answer's flow learns at once if the client is slow."""

    __slots__ = (
        "_num_acknowledged",
        "_reading",
        "_stall_seconds",
        "_stalls_at",
        "_transport",
        "flow",
        "is_paused",
        "num_written",
    )

    def __init__(self, transport: asyncio.Transport, stall_seconds: float) -> None:
        self._transport = transport
        self._stall_seconds = stall_seconds
        self.flow: Flow | None = None
        """The source of the present answer, if it does not pass through the request's task."""
        self.is_paused = False
        """Whether the client is too slow for what has been written."""
        self.num_written = 0
        """Bytes, also those that the client has not read."""
        self._num_acknowledged = 0
        self._stalls_at = 0.0
        self._reading: asyncio.Future[None] | None = None
        """Waits for a slow client."""

    def write(self, data: bytes) -> None:
        """Send bytes. After the client has left they go nowhere."""
        if self._transport.is_closing():
            return
        self.num_written += len(data)
        self._transport.write(data)

    def attach(self, flow: Flow) -> None:
        """Have the flow learn of the client. Raises ConnectionResetError if it has left."""
        self._require_client()
        self.flow = flow
        if self.is_paused:
            flow.pause()

    async def drain(self) -> None:
        """Wait until the client has read enough. Raises ConnectionResetError if it leaves."""
        self._require_client()
        if self.is_paused:
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading

    def pause(self) -> None:
        """Pause the source of the answer, because the client reads slowly."""
        self.is_paused = True
        if self.flow is not None:
            self.flow.pause()

    def resume(self) -> None:
        """Resume the source of the answer: the client has read."""
        if self.flow is not None:
            self.flow.resume()
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def end(self) -> bool:
        """End what waits for a client that has left. Returns whether there was a flow: it learns of it."""
        flow, self.flow = self.flow, None
        if self._reading is not None and not self._reading.done():
            self._reading.set_exception(ConnectionResetError("the client has left"))
        if flow is not None:
            flow.leave()
        return flow is not None

    def count_unread(self) -> int:
        """Return the bytes that the client has not acknowledged."""
        return count_unread(self._transport)

    def is_progressing(self, now: float) -> bool:
        """Whether the client reads, however slowly."""
        acknowledged = self.num_written - self.count_unread()
        if acknowledged > self._num_acknowledged or not self._stalls_at:
            self._num_acknowledged = acknowledged
            self._stalls_at = now + self._stall_seconds
        return now < self._stalls_at

    def _require_client(self) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the client has left")
