"""Parses a connection's bytes into requests, strictly: what two servers may read in two ways is refused."""

import re
from typing import NoReturn, Protocol

import httptools

from millrace_gateway.errors import BadHttpError, HeadTooLargeError, RequestRefusedError, TargetTooLongError
from millrace_gateway.http.head import FRAMING, Headers, write_headers
from millrace_gateway.http.limits import ConnectionLimits

_HEADER_BYTES, _REQUEST_BYTES = 128, 512
"""The memory of a header and of a request beside their bytes: objects of Python."""
_PIECE_BYTES, _LINES_BYTES = 16 * 1024, 1024
"""Parsed at once of what one read has brought: in all, and of lines, of which heads are. httptools parses all
that it gets, and many short requests take far more memory than their bytes. A usual head is shorter."""
_ABSOLUTE = re.compile(r"https?://([^/?#@]+)(/[^#]*)?")


class RequestHead:
    """The head of a request."""

    __slots__ = (
        "asks_for_websocket",
        "headers",
        "host",
        "is_http_10",
        "keeps_alive",
        "method",
        "num_bytes",
        "target",
    )

    def __init__(self, method: bytes, target: str, host: str, headers: Headers, *, is_http_10: bool) -> None:
        self.method = method
        self.target = target
        """The path with its query, in the client's own encoding."""
        self.host = host
        self.headers = headers
        self.is_http_10 = is_http_10
        self.keeps_alive = True
        self.asks_for_websocket = False
        self.num_bytes = 0
        """About the memory that it takes, with the copy of it that is made for a replica."""


class Receiver(Protocol):
    """Takes what is parsed."""

    def take_head(self, head: RequestHead) -> bool:
        """Take a head. Return whether another protocol may follow, if the head asks for it."""

    def take_body(self, piece: bytes) -> None:
        """Take a piece of the body."""

    def take_end(self) -> None:
        """Note the request's end."""


class RequestParser:
    """httptools' parser, with limits, and with the checks that it leaves to servers."""

    __slots__ = (
        "_fault",
        "_headers",
        "_is_in_body",
        "_is_in_copy",
        "_is_tunnel",
        "_limits",
        "_max_head_bytes",
        "_num_head_bytes",
        "_parser",
        "_receiver",
        "_target",
        "num_loose_bytes",
    )

    def __init__(self, receiver: Receiver, limits: ConnectionLimits) -> None:
        self._receiver = receiver
        self._limits = limits
        self._max_head_bytes = limits.max_head_bytes  # asked for each header
        self._parser = httptools.HttpRequestParser(self)
        self._is_in_copy = False
        self._is_in_body = False
        self._is_tunnel = False
        self._target = b""
        self._headers: Headers = []
        self._num_head_bytes = 0
        self._fault: RequestRefusedError | None = None
        self.num_loose_bytes = 0
        """Bytes since the last complete head, piece of a body, or end of a request."""

    @property
    def num_kept_bytes(self) -> int:
        """About the memory of a head that has arrived in part: at most twice its bytes, and its headers'.

        httptools gathers what is no body of a request, such as a part of a trailer.
        """
        if self._is_in_body or not self.num_loose_bytes:
            return self.num_loose_bytes
        return self.num_loose_bytes + self._num_head_bytes + _HEADER_BYTES * len(self._headers)

    def feed(self, data: bytes) -> bytes:
        """Parse the bytes. Return those behind a head that ends HTTP. Raises RequestRefusedError."""
        self.num_loose_bytes += len(data)
        try:
            rest = self._feed(data)
        except httptools.HttpParserError as error:
            raise self._fault or BadHttpError(f"The request is no HTTP/1.1: {error}.") from error
        if self.num_loose_bytes > self._max_head_bytes or len(self._headers) > self._limits.max_headers:
            self._headers = []
            raise describe_size(self._limits)
        return rest

    def _feed(self, data: bytes) -> bytes:
        """Parse the bytes. Behind an offer of another protocol than WebSocket, HTTP/1.1 goes on.

        Java's HttpClient offers h2c with its first request. httptools takes the bytes after such a head for
        the other protocol. So a new parser gets a copy of the head without the offer, and the rest.
        """
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                if self._is_tunnel:
                    return data
                framing = [header for header in self._headers if header[0] in FRAMING]
                self._parser = httptools.HttpRequestParser(self)
                self._is_in_copy = True
                self._parser.feed_data(b"POST / HTTP/1.1\r\n" + write_headers(framing) + b"\r\n")
            else:
                break
        return b""

    # Calls of httptools.

    def on_message_begin(self) -> None:
        """Begin a head."""
        if not self._is_in_copy:
            self._target, self._headers, self._num_head_bytes, self._is_in_body = b"", [], 0, False

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        if not self._is_in_copy:
            self._target += url
            self._num_head_bytes += len(url)
            if len(self._target) > self._limits.max_target_bytes:
                self._stop(describe_length(self._limits))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Those of a body's end are dropped."""
        if self._is_in_copy:
            return
        self._num_head_bytes += len(name) + len(value) + 4
        if self._num_head_bytes > self._max_head_bytes:
            self._stop(describe_size(self._limits))
        if not self._is_in_body:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Check the head and pass it on."""
        if self._is_in_copy:
            self._is_in_copy = False
            return
        if len(self._headers) > self._limits.max_headers:
            self._stop(describe_size(self._limits))
        self.num_loose_bytes = 0
        self._is_in_body = True
        head = self._read_head()
        # A path that is decoded may take four bytes a character.
        num_twice = self._num_head_bytes + 2 * len(self._target)
        head.num_bytes = 2 * num_twice + _HEADER_BYTES * len(self._headers) + _REQUEST_BYTES
        self._target = b""
        head.keeps_alive = self._parser.should_keep_alive()
        if self._parser.should_upgrade() and self._is_handshake(head):
            head.asks_for_websocket, head.keeps_alive = True, False
        self._is_tunnel = self._receiver.take_head(head) and head.asks_for_websocket

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on."""
        self.num_loose_bytes = 0
        self._receiver.take_body(body)

    def on_message_complete(self) -> None:
        """Pass the end on, unless httptools ends the request early because of an offer."""
        self.num_loose_bytes = 0
        if self._is_tunnel or not self._parser.should_upgrade():
            self._receiver.take_end()

    def _is_handshake(self, head: RequestHead) -> bool:
        """Whether the head, which offers another protocol, asks for a WebSocket.

        httptools ends such a request at its head, and a proxy that reads its length sends a body: if the
        connection lived on, that body would be the next client's request (request smuggling).
        """
        if head.method != b"GET" or head.is_http_10 or (b"upgrade", b"websocket") not in _lower(head.headers):
            return False
        if any(name in FRAMING and value.strip(b"0") for name, value in head.headers):
            self._stop(BadHttpError("A request for a WebSocket has no body."))
        return True

    def _read_head(self) -> RequestHead:
        headers, version, target = (
            self._headers,
            self._parser.get_http_version(),
            self._target.decode("latin-1"),
        )
        host: bytes | None = None
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    self._stop(BadHttpError("A request needs exactly one Host header."))
                host = value
            elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
                self._stop(BadHttpError("The only Transfer-Encoding is chunked, in HTTP/1.1."))
        method = self._parser.get_method()
        self._check_line(method, version)
        if host is None and version == "1.1":
            self._stop(BadHttpError("A request needs exactly one Host header."))
        authority = (host or b"").decode("latin-1")
        if not target.startswith("/"):
            absolute = _ABSOLUTE.fullmatch(target)
            if absolute is None:
                self._stop(BadHttpError("The request's target is no path."))
            authority, target = absolute[1], absolute[2] or "/"
        if "#" in target:
            self._stop(BadHttpError("The request's target has a fragment."))
        return RequestHead(method, target, authority, headers, is_http_10=version == "1.0")

    def _check_line(self, method: bytes, version: str) -> None:
        if method == b"CONNECT":
            self._stop(BadHttpError("This server is no forward proxy: it has no CONNECT."))
        if version not in ("1.1", "1.0"):
            self._stop(BadHttpError(f"HTTP/{version} is not spoken here: use HTTP/1.1."))

    def _stop(self, fault: RequestRefusedError) -> NoReturn:
        """Stop httptools within one of its calls."""
        self._fault = fault
        raise fault


def find_piece_end(data: bytes, start: int) -> int:
    """Return the end of the piece that is to be parsed at once."""
    last_line = data.rfind(b"\r", start, start + _PIECE_BYTES)
    return start + (_LINES_BYTES if last_line > start + _LINES_BYTES else _PIECE_BYTES)


def describe_size(limits: ConnectionLimits) -> HeadTooLargeError:
    """Return the refusal of a head that is too large."""
    return HeadTooLargeError(
        f"The request's head is too large: at most {limits.max_headers} headers and "
        f"{limits.max_head_bytes} bytes."
    )


def describe_length(limits: ConnectionLimits) -> TargetTooLongError:
    """Return the refusal of a path and query that are too long."""
    return TargetTooLongError(f"The path with its query is longer than {limits.max_target_bytes} bytes.")


def _lower(headers: Headers) -> Headers:
    return [(name, value.lower()) for name, value in headers]
