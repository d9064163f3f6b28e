"""Passes the body of a replica's answer to a client, without a task: each read becomes one write.

A slow client stops the reading from its replica. A client that leaves ends the generation at once.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from millrace_gateway.http.client_connection import ClientConnection
from millrace_gateway.http.replica_connection import ReplicaConnection


class RelayEnd(Enum):
    """How an answer ended."""

    WHOLE = "whole"
    BROKEN_OFF = "broken off"
    """By the replica. The client has not got the answer's end yet."""
    CLIENT_LEFT = "client left"


class Writer(Protocol):
    """Writes to a client: an Answer, or a Tunnel."""

    def flush(self) -> None:
        """Send the head now, if there is one."""

    def write(self, piece: bytes) -> None:
        """Send a piece."""

    def end(self) -> None:
        """Note that everything is written."""


class Tunnel:
    """Writes the bytes behind an upgrade as they are."""

    def __init__(self, client: ClientConnection) -> None:
        self.write = client.writer.write

    def flush(self) -> None:
        """The head has been sent."""

    def end(self) -> None:
        """The connection's end ends them."""


class Relay:
    """One answer on its way. It is the client's Flow and the replica's Sink."""

    __slots__ = ("_answer", "_client", "_convert", "_done", "_replica", "last", "was_slow")

    def __init__(
        self,
        client: ClientConnection,
        answer: Writer,
        replica: ReplicaConnection,
        convert: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`convert` returns the bytes that go to the client, for those of the body."""
        self._client = client
        self._answer = answer
        self._replica = replica
        self._convert = convert
        self._done: asyncio.Future[RelayEnd] = asyncio.get_running_loop().create_future()
        self.last = b"\n\n"
        """The last bytes that went to the client."""
        self.was_slow = False
        """Whether the replica had to wait for the client."""

    async def run(self) -> RelayEnd:
        """Pass the body until its end. Cancelled, it ends the generation."""
        try:
            self._client.writer.attach(self)
            self._replica.attach(self)
            if not self._done.done():
                self._answer.flush()
            return await self._done
        except ConnectionError:
            self._replica.abort()
            return RelayEnd.CLIENT_LEFT
        except asyncio.CancelledError:
            self._replica.abort()
            raise

    # The replica's calls.

    def take(self, pieces: list[bytes]) -> None:
        """Pass pieces on, converted together: a read may have tens of thousands of one byte."""
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._convert is not None:
            piece = self._convert(piece)
            if not piece:
                return
        self._answer.write(piece)
        self.last = piece

    def end(self, *, is_whole: bool) -> None:
        """End the client's answer, if it is whole."""
        if is_whole:
            self._answer.end()
        self._finish(RelayEnd.WHOLE if is_whole else RelayEnd.BROKEN_OFF)

    def pause_client(self) -> None:
        """Read nothing more from the client: the replica is slow."""
        self._client.pause_reading()

    def resume_client(self) -> None:
        """Read on."""
        self._client.resume_reading()

    # The client's calls.

    def pause(self) -> None:
        """Read nothing more from the replica: the client is slow."""
        self.was_slow = True
        self._replica.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._replica.resume_reading()

    def leave(self) -> None:
        """End the generation: the client has left."""
        self._replica.abort()
        self._finish(RelayEnd.CLIENT_LEFT)

    def feed(self, data: bytes) -> None:
        """Pass the client's bytes behind an upgrade."""
        self._replica.write(data)

    def _finish(self, end: RelayEnd) -> None:
        if not self._done.done():
            self._done.set_result(end)
