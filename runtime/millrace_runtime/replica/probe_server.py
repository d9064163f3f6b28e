"""GET /livez and /readyz on a port of their own. The supervisor answers them from the heartbeats.

The HTTP process has /readyz, too. But it answers late under more load than it can carry: a replica with 0.3
cores that got three times what it serves took over 15 s, failed its readiness probe three times in a row, and
Kubernetes gave it no more requests, so clients got only refusals (`tests/runtime/replica/test_replica.py`).
A probe says whether a replica works. Load is the autoscaler's business.
"""

import asyncio
import socket
import threading
from asyncio import CancelledError, IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Callable, Mapping
from http import HTTPStatus

from millrace_runtime.listener import BACKLOG

MAX_WAITING = 512
"""Connections that may wait for a request. One more closes the oldest, so idle connections block no probe.

The loop accepts up to 100 at a time, and reads the first of them two turns later: those are not idle.
"""
REQUEST_SECONDS = 5.0
"""How long a whole request and its answer may take."""
HEAD_BYTES = 8192


class ProbeServer:
    """Answers probes from one thread. No other process or client can delay it."""

    def __init__(self, listener: socket.socket, probes: Mapping[str, Callable[[], str | None]]) -> None:
        """The server owns `listener` from now on.

        A probe, by its path, returns what is wrong in one sentence; None if all is well.
        """
        self._listener, self._probes = listener, probes
        self._waiting: dict[StreamWriter, None] = {}
        """Connections without a complete request, the oldest first."""
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)

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
        probe = self._probes.get(target.partition(" ")[0].partition("?")[0])
        if method != "GET" or probe is None:
            return _response(HTTPStatus.NOT_FOUND, f"here is only GET {' or '.join(self._probes)}")
        fault = probe()
        return _response(HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK, fault or "ok")


def _response(status: HTTPStatus, text: str) -> bytes:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
