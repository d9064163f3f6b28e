"""One connection to a replica: sends a request, parses the head of the answer, and passes its body on."""

import asyncio
from typing import Protocol

import httptools

from millrace_gateway.errors import BrokenAnswerError
from millrace_gateway.http.early_reports import EarlyReports
from millrace_gateway.http.head import FRAMING, AnswerHead
from millrace_gateway.http.sockets import REPLICA_SECONDS, keep_alive

MAX_HEAD_BYTES = 256 * 1024
"""Also of anything else that is no body, such as trailers: a tenant's replica may never end them."""
_MAX_HEADERS = 256
"""Of an answer with its trailer: reading and filtering 65,000 empty ones would hold the loop for 0.1 s."""
_MAX_REASON_BYTES = 128
_JOINED_BYTES = 64 * 1024
"""Up to this length one write of head and body costs less than two."""
_SWITCHING = 101


class Sink(Protocol):
    """Takes the body of an answer."""

    def take(self, pieces: list[bytes]) -> None:
        """Take pieces of the body, at least one, as they came in one read."""

    def end(self, *, is_whole: bool) -> None:
        """Note the end; not whole if the replica broke off."""

    def pause_client(self) -> None:
        """Take no more bytes from the client for now: the replica is slow."""

    def resume_client(self) -> None:
        """Take bytes from the client again."""


class ReplicaConnection(asyncio.Protocol):
    """Owner of one connection and of the exchange on it."""

    __slots__ = (
        "_arrival",
        "_has_body",
        "_head",
        "_is_asked",
        "_is_cut",
        "_is_whole",
        "_keeps_alive",
        "_may_switch",
        "_num_headers",
        "_num_loose_bytes",
        "_parser",
        "_pieces",
        "_sink",
        "_transport",
        "idle_since",
        "is_lost",
        "reports",
        "tunnel",
    )

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._arrival: asyncio.Future[AnswerHead] | None = None
        self._head = AnswerHead()
        self._num_loose_bytes = 0
        """Bytes since the last complete head, piece of a body, or end of an answer."""
        self._num_headers = 0
        self._pieces: list[bytes] = []
        self._sink: Sink | None = None
        self._is_asked = False
        """Whether a request is under way."""
        self._is_whole = False
        """Whether the whole answer has been parsed."""
        self._keeps_alive = False
        self._is_cut = False
        self._has_body = True
        self._may_switch = False
        self.is_lost = False
        self.reports = EarlyReports()
        self.idle_since = 0.0
        self.tunnel = False
        """Whether the bytes behind the head are no HTTP."""

    # Calls of the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Have the kernel find out when the replica's node is gone."""
        self._transport = transport
        keep_alive(transport, REPLICA_SECONDS)

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange as cut, unless it is complete."""
        self.is_lost = True
        self._break(error or ConnectionResetError("the replica closed the connection"))

    def eof_received(self) -> None:
        """End an answer of HTTP/1.0 without a length: its end is the connection's, unless that is a reset."""
        is_http_10 = self._head.status >= 200 and self._parser.get_http_version() == "1.0"
        if self._is_asked and is_http_10 and FRAMING.isdisjoint(name for name, _ in self._head.headers):
            self._is_whole = True
            self._pass()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and pass on what they have of the body."""
        if not self._is_asked:
            self._transport.abort()
            return
        if self.tunnel and self._sink is not None:
            self._sink.take([data])
            return
        self._num_loose_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._pieces.append(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._transport.abort()
            if self._is_whole:  # what follows is not the client's
                self._keeps_alive = False
                self._pass()
                return
            own = error.__context__
            self._break(own if isinstance(own, BrokenAnswerError) else BrokenAnswerError(f"no HTTP: {error}"))
            return
        if self.reports.pass_on(len(data)):  # else an hour of reports would be a head that is too large
            self._num_loose_bytes = self._num_headers = 0
        self._pass()
        if self._num_loose_bytes > MAX_HEAD_BYTES:
            self._transport.abort()
            self._break(BrokenAnswerError("its head is too large"))

    def pause_writing(self) -> None:
        """Have a WebSocket's client wait. The body of a request waits in memory, where it is counted."""
        if self.tunnel and self._sink is not None:
            self._sink.pause_client()

    def resume_writing(self) -> None:
        """Have a WebSocket's client go on."""
        if self.tunnel and self._sink is not None:
            self._sink.resume_client()

    # Calls of the parser.

    def on_message_begin(self) -> None:
        """Begin a head. An answer that nobody asked for would look like that of another request."""
        if self._is_whole:
            raise BrokenAnswerError("another answer follows")
        self._head = AnswerHead()

    def on_status(self, reason: bytes) -> None:
        """Take the reason, or its beginning."""
        self._head.reason = (self._head.reason + reason)[:_MAX_REASON_BYTES]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Those of a body's end are dropped."""
        self._num_headers += 1
        if self._num_headers > _MAX_HEADERS:
            raise BrokenAnswerError(f"it has more than {_MAX_HEADERS} headers")
        if not self._head.status:
            self._head.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Pass the head on, unless it only informs (status 1xx)."""
        status = self._head.status = self._parser.get_status_code()
        if status < 200 and status != _SWITCHING:  # their bytes stay counted: there may be no end
            self.reports.note_head(self._head.headers)
            return
        self._num_loose_bytes = 0
        if status == _SWITCHING and not self._may_switch:
            raise BrokenAnswerError("it switches to a protocol that nobody asked for")
        self.tunnel = status == _SWITCHING
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(self._head)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._num_loose_bytes = 0
        if self._has_body:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the answer."""
        if self._head.status >= 200:
            self._num_loose_bytes = 0
            self._is_whole = True
            self._keeps_alive = self._parser.should_keep_alive()

    # What an exchange asks.

    async def ask(
        self, head: bytes, body: bytes, *, has_body: bool = True, may_switch: bool = False
    ) -> AnswerHead:
        """Send a request and return the head of its answer.

        `has_body`: the answer is not one to HEAD. `may_switch`: the request asks for a WebSocket.
        Raises ConnectionError if the connection ends before, and BrokenAnswerError.
        """
        if not self.is_open:
            raise ConnectionResetError("the connection is closed")
        self._is_asked, self._is_whole, self._num_loose_bytes, self._has_body = True, False, 0, has_body
        self._may_switch, self._num_headers, self._head = may_switch, 0, AnswerHead()
        self._arrival = asyncio.get_running_loop().create_future()
        if len(body) > _JOINED_BYTES:
            self._transport.writelines([head, body])
        else:
            self._transport.write(head + body)
        try:
            found = await self._arrival
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._arrival = None
        if not has_body:
            self._is_whole = True
        return found

    def attach(self, sink: Sink) -> None:
        """Pass the body to the sink from now on, first what has arrived of it."""
        self._sink = sink
        self.resume_reading()  # paused while nobody took the pieces: uvloop reads many before a task runs
        self._pass()
        if self._is_cut or self.is_lost:
            self._break(ConnectionResetError("the replica closed the connection"))

    def write(self, data: bytes) -> None:
        """Send bytes behind an upgrade."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """End the connection at once: the replica then ends the generation."""
        self._sink = None
        self._is_asked = False
        self._transport.abort()

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed it."""
        return not (self.is_lost or self._transport.is_closing())

    @property
    def has_sent(self) -> bool:
        """Whether the kernel has taken the whole request."""
        return not self._transport.get_write_buffer_size()

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""
        return (
            self._is_whole
            and self._has_body
            and not self._pieces
            and self.has_sent
            and not self.tunnel
            and self.is_open
            and self._keeps_alive
        )

    def rest(self, now: float) -> None:
        """Be idle until the next request."""
        self.resume_reading()  # a slow client may have paused it within the last bytes
        self._is_asked = False
        self._sink = self.reports.on_usage = None
        self.idle_since = now

    def _pass(self) -> None:
        sink = self._sink
        if sink is None:
            if sum(map(len, self._pieces)) > MAX_HEAD_BYTES:
                self.pause_reading()  # until somebody takes them
            return
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            sink.take(pieces)
        if self._is_whole and self._sink is not None:
            self._sink = None
            sink.end(is_whole=True)

    def _break(self, error: Exception) -> None:
        self._is_cut = True
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_exception(error)
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.end(is_whole=False)
