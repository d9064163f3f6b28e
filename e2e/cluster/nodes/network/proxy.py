"""A TCP proxy in the place of kube-proxy: listens on each ClusterIP:port, connects to a ready pod."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from e2e.cluster.nodes.network.endpoints import Endpoint, can_proxy, select_backends, tcp_ports

Object = dict[str, Any]

_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS = 2.0
RETRY_SECONDS = 5.0
"""After which a port that could not be listened on is tried again."""


class Connection(NamedTuple):
    """An open TCP connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ServicePort(NamedTuple):
    """One port of one Service."""

    service: Object
    port: Object


class ServiceProxy:
    """Listeners that follow the Services; each new connection takes the next ready pod."""

    def __init__(
        self, pods: Callable[[], Iterable[Object]], on_refused: Callable[[Object, str], None]
    ) -> None:
        """`pods` are all of the cluster's; `on_refused` hears of a Service that cannot be listened for."""
        self._pods = pods
        self._on_refused = on_refused
        self._servers: dict[Endpoint, asyncio.Server] = {}
        self._services: dict[Endpoint, ServicePort] = {}
        self._refusals: dict[Endpoint, str] = {}
        self._turns: dict[Endpoint, int] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def follow(self, services: Iterable[Object]) -> None:
        """Listen for exactly these Services, as far as their ports are free."""
        wanted = {
            Endpoint(service["spec"]["clusterIP"], port["port"]): ServicePort(service, port)
            for service in services
            if can_proxy(service)
            for port in tcp_ports(service)
        }
        for place in self._services.keys() - wanted.keys():
            self._forget(place)
        self._services = wanted
        for place in [place for place in wanted if place not in self._servers]:
            await self._listen(place)

    async def wait_until_due(self, changed: asyncio.Event) -> None:
        """Return when the Services have changed, or when a port that was taken is to be tried again."""
        is_complete = self._servers.keys() == self._services.keys()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if is_complete else RETRY_SECONDS):
                await changed.wait()

    async def close(self) -> None:
        """Stop listening and end the connections."""
        for place in list(self._services):
            self._forget(place)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _forget(self, place: Endpoint) -> None:
        self._services.pop(place, None)
        self._turns.pop(place, None)
        self._refusals.pop(place, None)
        if (server := self._servers.pop(place, None)) is not None:
            server.close()

    async def _listen(self, place: Endpoint) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            with contextlib.suppress(asyncio.CancelledError):
                await self._carry(place, reader, writer)

        try:
            self._servers[place] = await asyncio.start_server(
                accept, *place, limit=_CHUNK_BYTES, backlog=1024
            )
        except OSError as error:
            self._note_refusal(place, error)

    def _note_refusal(self, place: Endpoint, error: OSError) -> None:
        """Tell why a port can't be listened on, and not again at each try."""
        hint = "; give the Service a port of 1024 or more" if isinstance(error, PermissionError) else ""
        why = f"cannot listen on {place.address}:{place.port}: {error}{hint}"
        if self._refusals.get(place) != why:
            self._refusals[place] = why
            self._on_refused(self._services[place].service, why)

    async def _carry(
        self, place: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        backend = await self._connect(place)
        if backend is None:
            _reset(writer)
            return
        try:
            await asyncio.gather(_copy(reader, backend.writer), _copy(backend.reader, writer))
        except OSError:
            _reset(writer)
            _reset(backend.writer)
        finally:
            for end in (writer, backend.writer):
                end.close()

    async def _connect(self, place: Endpoint) -> Connection | None:
        """Return a connection to the first backend that takes one, or None."""
        for address, port in self._backends(place):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return Connection(*await asyncio.open_connection(address, port, limit=_CHUNK_BYTES))
        return None

    def _backends(self, place: Endpoint) -> list[Endpoint]:
        """Return each backend once, starting with the one whose turn it is."""
        if place not in self._services:
            return []
        backends = select_backends(*self._services[place], self._pods())
        turn = self._turns[place] = self._turns.get(place, -1) + 1
        start = turn % len(backends) if backends else 0
        return backends[start:] + backends[:start]


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side sees an error, not the end of an answer."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends, and then end the writer."""
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
