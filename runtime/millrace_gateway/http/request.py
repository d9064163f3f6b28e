"""A client's request, as its connection received it, and the ways to answer it."""

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import unquote

from millrace_gateway.errors import RequestRefusedError
from millrace_gateway.http.answer import Answer
from millrace_gateway.http.head import Header, Headers, find_header, status_line, write_headers
from millrace_gateway.http.request_parser import RequestHead

if TYPE_CHECKING:
    from millrace_gateway.http.client_connection import ClientConnection

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Request:
    """One request. Its body arrives while it is handled."""

    __slots__ = (
        "_arrival",
        "_body",
        "_expects_continue",
        "connection",
        "headers",
        "host",
        "is_complete",
        "is_http_10",
        "keeps_alive",
        "method",
        "num_body_bytes",
        "num_head_bytes",
        "path",
        "target",
        "tunnel",
    )

    def __init__(self, connection: "ClientConnection", head: RequestHead) -> None:
        self.connection = connection
        self.method = head.method
        self.target = target = head.target
        """The path with its query, in the client's own encoding."""
        path = target.partition("?")[0]
        self.path = unquote(path, errors="replace") if "%" in path else path
        """The path as replicas read it: decoded, without the query."""
        self.host = head.host
        self.headers = head.headers
        self.num_head_bytes = head.num_bytes
        """About the memory that the head takes, with the copy of it that is made for a replica."""
        self.is_http_10 = head.is_http_10
        self.keeps_alive = head.keeps_alive
        self.tunnel = head.asks_for_websocket
        """Whether the client asks for a WebSocket."""
        self.is_complete = False
        """Whether the whole body has arrived."""
        self.num_body_bytes = 0
        """Bytes of the body that have arrived."""
        self._body = bytearray()
        self._arrival: asyncio.Future[None] | None = None
        expect = find_header(head.headers, b"expect")
        self._expects_continue = expect is not None and expect.lower() == b"100-continue"

    # What the connection reports.

    def feed(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self.num_body_bytes += len(piece)
        self._body += piece
        self._wake()

    def complete(self) -> None:
        """Note the body's end."""
        self.is_complete = True
        self._wake()

    # What a handler asks.

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of this name, in lower case; None without one."""
        return find_header(self.headers, name)

    @property
    def announced_bytes(self) -> int:
        """The length that the client has announced; 0 if it has not."""
        length = self.header(b"content-length")
        return int(length) if length else 0

    async def wait_body(self) -> None:
        """Wait for more of the body. The client that waits for leave gets it."""
        if self._expects_continue:
            self._expects_continue = False
            self.connection.writer.write(CONTINUE)
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def take_body(self) -> bytes:
        """Return the body, which this object then forgets."""
        body = bytes(self._body)
        self.drop_body()
        return body

    def drop_body(self) -> None:
        """Forget what has arrived of the body."""
        self._body = bytearray()

    def respond(self, status: int, body: bytes, headers: Headers) -> int:
        """Answer with a whole body. Return the status."""
        self.begin(status, [*headers, length_header(body)]).end(body)
        return status

    def begin(self, status: int, headers: Headers, reason: bytes = b"") -> Answer:
        """Begin an answer. Without `content-length` among the headers it is sent in chunks."""
        return Answer(self.connection, self, status, headers, reason)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def length_header(body: bytes) -> Header:
    """Return the header with a body's length."""
    return (b"content-length", b"%d" % len(body))


def write_last(refusal: RequestRefusedError) -> bytes:
    """Return a refusal as the last answer of a connection."""
    body = refusal.body()
    lines = [*refusal.lines, length_header(body), (b"connection", b"close")]
    return status_line(refusal.status) + write_headers(lines) + b"\r\n" + body
