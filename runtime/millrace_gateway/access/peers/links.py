"""The connections between gateways: each sends its reports to all others, on a connection of its own.

The first frame of a connection has the caller's name and a token. The token is valid only at the called
address, so a program that receives it can't use it at another gateway. Every other frame is a report, of
limits or of use: its first byte says which. A frame is its length in four bytes, and then so many bytes.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import msgspec

from millrace_gateway.access.errors import PeerReportError
from millrace_gateway.access.peers.limit_exchange import REPORT_SECONDS, LimitExchange
from millrace_gateway.access.peers.peer_report import apply_usage, take_usage
from millrace_gateway.access.signer import Signer
from millrace_gateway.access.usage import UsageBook

logger = logging.getLogger(__name__)

HELLO_SECONDS = 2.0
"""For the first frame."""
SILENT_SECONDS = 10.0
"""A connection without a report for so long is closed."""
SEND_SECONDS = 2.0
"""For a report to leave, and for a connection to open."""
RETRY_SECONDS = 1.0
BREATH_SECONDS = 0.005
"""A pause between two reports of many accounts, in which the loop serves requests."""
MOST_HELLO_BYTES = 1024
MOST_REPORT_BYTES = 16 * 1024 * 1024
MOST_STRANGERS = 64
"""Connections that have not shown a token yet."""
USAGE_SECONDS = 5.0
"""Between two reports of use."""
_LENGTH_BYTES = 4
_LIMITS = b"l"
_USAGE = b"u"


class Hello(NamedTuple):
    """The first frame."""

    name: str
    token: str


def name_audience(address: str) -> str:
    """Return the audience of a token for the gateway at this address. No service has such a name."""
    return f"/peers/{address.removeprefix('::ffff:')}"


class PeerServer:
    """Receives the reports of other gateways."""

    def __init__(self, exchange: LimitExchange, book: UsageBook, signer: Signer) -> None:
        self._exchange = exchange
        self._book = book
        self._signer = signer
        self._num_strangers = 0
        self._connections: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    @asynccontextmanager
    async def serve(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve at a bound socket while entered."""
        server = await asyncio.start_server(self._serve, sock=listener)
        try:
            yield
        finally:
            server.close()
            for writer in self._connections.values():
                writer.transport.abort()
            await asyncio.gather(*(task for task in self._connections if task))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[asyncio.current_task()] = writer
        try:
            name = await self._greet(reader, writer.get_extra_info("sockname")[0])
            while name is not None:
                async with asyncio.timeout(SILENT_SECONDS):
                    frame = await read_frame(reader, MOST_REPORT_BYTES)
                self._apply(name, frame)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, PeerReportError) as error:
            logger.debug("the connection of another gateway ended: %r", error)
        finally:
            writer.transport.abort()
            del self._connections[asyncio.current_task()]

    def _apply(self, name: str, frame: bytes) -> None:
        """Apply a report; ignore one of an unknown, newer kind. Raises PeerReportError."""
        if frame[:1] == _LIMITS:
            self._exchange.apply_report(name, frame[1:])
        elif frame[:1] == _USAGE:
            apply_usage(self._book, frame[1:])

    async def _greet(self, reader: asyncio.StreamReader, address: str) -> str | None:
        """Return the name of the gateway that calls; None for one that shows no valid token."""
        if self._num_strangers >= MOST_STRANGERS:
            return None
        self._num_strangers += 1
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                frame = await read_frame(reader, MOST_HELLO_BYTES)
        finally:
            self._num_strangers -= 1
        try:
            hello = msgspec.msgpack.decode(frame, type=Hello)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        verifier = self._signer.make_verifier(name_audience(address))
        return hello.name if verifier.is_valid(hello.token, time.time()) else None


class PeerLinks:
    """Owner of a task for each other gateway, which sends it reports."""

    def __init__(
        self, own_name: str, exchange: LimitExchange, book: UsageBook, signer: Signer, port: int
    ) -> None:
        """`own_name` is the name of this gateway's pod; `port` is where the others listen."""
        self._own_name = own_name
        self._exchange = exchange
        self._book = book
        self._signer = signer
        self._port = port
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """Send to these gateways, addresses by the names of their pods. This gateway may be among them."""
        wanted = {at for at in addresses.items() if at[0] != self._own_name}
        for at in self._tasks.keys() - wanted:
            self._tasks.pop(at).cancel()
        self._exchange.set_peers([name for name, _ in wanted])
        for at in wanted - self._tasks.keys():
            self._tasks[at] = asyncio.create_task(self._run(*at))

    async def close(self) -> None:
        """End all connections."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, address: str) -> None:
        """Send reports for ever. A bug of ours must not end that: the other gateway would wait for them."""
        while True:
            try:
                with suppress(OSError, TimeoutError):
                    await self._send_to(name, address)
            except Exception:
                logger.exception("the reports to gateway %s failed", name)
            await asyncio.sleep(RETRY_SECONDS)

    async def _send_to(self, name: str, address: str) -> None:
        """Send reports until the connection ends. Raises OSError or TimeoutError."""
        token = self._signer.sign_newest(name_audience(address))
        if token is None:
            return
        async with asyncio.timeout(SEND_SECONDS):
            reader, writer = await asyncio.open_connection(address, self._port)
        try:
            _fail_fast(writer.get_extra_info("socket"))
            writer.write(make_frame(msgspec.msgpack.encode(Hello(self._own_name, token))))
            await self._send_reports(name, reader, writer)
        finally:
            writer.transport.abort()

    async def _send_reports(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send reports until the other gateway ends the connection. Raises OSError or TimeoutError."""
        sent, sent_usage, usage_at = 0, 0, time.monotonic()
        while not reader.at_eof():
            report = self._exchange.take_report(name, sent)
            sent, has_more = report.version, report.has_more
            writer.write(make_frame(_LIMITS + report.data))
            if time.monotonic() >= usage_at:
                usage = take_usage(self._book, self._exchange.incarnation, sent_usage)
                sent_usage = usage.version
                usage_at = time.monotonic() + (0.0 if usage.has_more else USAGE_SECONDS)
                writer.write(make_frame(_USAGE + usage.data))
            async with asyncio.timeout(SEND_SECONDS):
                await writer.drain()
            await asyncio.sleep(BREATH_SECONDS if has_more else REPORT_SECONDS)


def make_frame(data: bytes) -> bytes:
    """Return the frame of these bytes."""
    return len(data).to_bytes(_LENGTH_BYTES) + data


async def read_frame(reader: asyncio.StreamReader, most_bytes: int) -> bytes:
    """Return the next frame's bytes. Raises PeerReportError for a longer one, and IncompleteReadError."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    if length > most_bytes:
        raise PeerReportError(f"a frame of {length} bytes")
    return await reader.readexactly(length)


def _fail_fast(connection: socket.socket) -> None:
    """Have the kernel end the connection if the other node, perhaps lost, acknowledges no bytes in time."""
    with suppress(OSError, AttributeError):  # not every system has it
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SEND_SECONDS * 1000))
