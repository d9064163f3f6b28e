"""Accepts clients' connections, and ends them without cutting an answer."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from millrace_gateway.errors import RequestRefusedError
from millrace_gateway.http.client_connection import ClientConnection
from millrace_gateway.http.head import Headers
from millrace_gateway.http.limits import ConnectionLimits
from millrace_gateway.http.request import Request

CHECK_SECONDS = 1.0
"""Between two looks at the times of all connections."""
FLUSH_SECONDS = 0.02
"""Between two looks whether the clients have read everything."""
Handler = Callable[[Request], Coroutine[Any, Any, None]]


class HttpServer:
    """Owner of a listener's connections. `handle` answers each request."""

    def __init__(
        self,
        handle: Handler,
        limits: ConnectionLimits,
        *,
        find_extra: Callable[[Request], Headers] = lambda _: [],
        note_refusal: Callable[[RequestRefusedError], None] = lambda _: None,
    ) -> None:
        """`find_extra` returns the headers that every answer gets."""
        self._handle = handle
        self.limits = limits
        self.find_extra = find_extra
        self.note_refusal = note_refusal
        self.connections: set[ClientConnection] = set()
        self.num_kept_bytes = 0
        """Of all connections: heads that have arrived in part, and what follows a request that is served."""
        self.is_draining = False
        self.now: Callable[[], float]
        self._server: asyncio.Server
        self._check: asyncio.TimerHandle
        self.listener: socket.socket

    async def start(self, listener: socket.socket, backlog: int) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.listener = listener
        self._server = await loop.create_server(
            lambda: ClientConnection(self), sock=listener, backlog=backlog
        )
        self._check = loop.call_later(CHECK_SECONDS, self._check_connections)

    def spawn(self, request: Request, connection: ClientConnection) -> asyncio.Task[None]:
        """Have a request handled."""
        task = asyncio.get_running_loop().create_task(self._handle(request))
        task.add_done_callback(connection.end_task)
        return task

    def drain(self) -> None:
        """Close each connection after its answer; idle ones at once."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.end_idle()

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        self._server.close()

    async def stop(self) -> None:
        """Accept nothing more, and wait until every client has read its answer, or stalls."""
        self.stop_accepting()
        self.drain()
        while any(one.is_busy or one.writer.count_unread() for one in self.connections):  # noqa: ASYNC110  the kernel's
            await asyncio.sleep(FLUSH_SECONDS)
        for connection in list(self.connections):
            connection.close()
        await self._wait_ends()

    async def close(self) -> None:
        """End every connection."""
        self._check.cancel()
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await self._wait_ends()

    async def _wait_ends(self) -> None:
        while self.connections:  # noqa: ASYNC110  the loop reports their ends in its next turns
            await asyncio.sleep(0)

    def _check_connections(self) -> None:
        now = self.now()
        for connection in list(self.connections):
            connection.check(now)
        self._check = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_connections)
