"""GET /livez on a port of its own. The supervisor answers it from the heartbeats."""

import asyncio
import socket
import threading
from asyncio import CancelledError, IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Callable
from http import HTTPStatus

from millrace_runtime import contract
from millrace_runtime.listener import BACKLOG

MAX_WAITING = 512
"""Connections that may wait for a request. One more closes the oldest, so idle connections block no probe.

The loop accepts up to 100 at a time, and reads the first of them two turns later: those are not idle.
"""
REQUEST_SECONDS = 5.0
"""How long a whole request and its answer may take."""
HEAD_BYTES = 8192


class LiveServer:
    """Answers probes from one thread. No other process or client can delay it."""

    def __init__(self, listener: socket.socket, find_fault: Callable[[], str | None]) -> None:
        """The server owns `listener` from now on. `find_fault` returns a sentence about a fault, or None."""
        self._listener, self._find_fault = listener, find_fault
        self._waiting: dict[StreamWriter, None] = {}
        """Connections without a complete request, the oldest first."""
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="livez", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._serve_connection, sock=self._listener, limit=HEAD_BYTES)
        # asyncio listens with a backlog of 100, which is also the number that it accepts at a time.
        self._listener.listen(BACKLOG)
        await self._is_over.wait()
        server.close()

    async def _serve_connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer one request, and close the connection."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await self._await_head(reader, writer)
                writer.write(self._respond(head))
                await writer.drain()
        except (TimeoutError, OSError, IncompleteReadError, LimitOverrunError, CancelledError):
            writer.transport.abort()  # the client was slow, closed or sent too much, or the replica ends
        finally:
            writer.close()

    async def _await_head(self, reader: StreamReader, writer: StreamWriter) -> bytes:
        """Return a request's head. If too many connections wait, this closes the oldest."""
        if len(self._waiting) >= MAX_WAITING:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        self._waiting[writer] = None
        try:
            return await reader.readuntil(b"\r\n\r\n")
        finally:
            self._waiting.pop(writer, None)

    def _respond(self, head: bytes) -> bytes:
        method, _, target = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        if method != "GET" or path != contract.PATH_LIVE:
            return _response(HTTPStatus.NOT_FOUND, f"only GET {contract.PATH_LIVE} is here")
        fault = self._find_fault()
        return _response(HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK, fault or "alive")


def _response(status: HTTPStatus, text: str) -> bytes:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
