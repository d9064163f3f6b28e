"""uvicorn's server, with limits on a connection that uvicorn lacks.

uvicorn limits how long a kept connection may be idle, and with h11 the size of a head. With httptools it
limits neither the size nor the time of a head. With either, a client may leave its answer unread for ever. So
our protocol wraps uvicorn's and limits more:

- The time of a head. While the server serves no request, the start of the connection or any byte starts a
  clock, and only a complete head stops it. The rest of a body after its answer has a body's time.
- The size of a head, and of everything else that is no content of a body: trailers, chunk extensions.
- The time without reading. The server disconnects a client that reads nothing of a full write buffer. uvicorn
  then reports this to the application, which releases everything that the request holds.
- The bytes after a request that is being answered. uvicorn stops reading at a second head, and then does not
  notice that the client leaves. Our protocol reads on, up to a limit.
- The end of a connection before the whole request has arrived. An immediate close would reset the connection,
  and a client that has not read the answer yet would lose it. So the server reads on for a moment.
"""

from asyncio import Protocol, TimerHandle, Transport
from collections import deque
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from millrace_runtime.api.connection.asgi import CHUNKS
from millrace_runtime.api.connection.parser import Parser
from millrace_runtime.api.connection.transport import AnswerTransport, ChunkWriter, StallClock, disconnect
from millrace_runtime.api.errors import ApiError, BadRequestError, HeadTooLargeError, RequestTimeoutError
from millrace_runtime.api.settings import ConnectionLimits
from millrace_runtime.contract import PATH_STREAM

_HEADER_OVERHEAD = 4
"""`: ` and the line's end."""
_MAX_PIPELINED_BYTES = 64 << 10
"""The most bytes after a request that is being answered: room for every head, and for small bodies."""
_LINGER_SECONDS = 1.0
"""How long the server reads on while the client still sends, so that the client gets the answer."""


def build_server_config(app: ASGIApp, limits: ConnectionLimits, graceful_seconds: int) -> uvicorn.Config:
    """Return uvicorn's configuration. The caller brings the loop and the socket."""
    return uvicorn.Config(
        app,
        http=partial(_BoundedProtocol, limits),  # type: ignore[arg-type]
        loop="none",
        ws=_open_websocket,  # type: ignore[arg-type]
        ws_max_size=limits.max_message_bytes,
        ws_ping_timeout=limits.write_stall_seconds,
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        timeout_graceful_shutdown=graceful_seconds,
    )


def _open_websocket(**uvicorns: Any) -> Protocol:
    """Return a WebSocket's protocol. Its library takes 0.05 s to load, which no start should wait for."""
    from millrace_runtime.api.connection.websocket import WebSocketProtocol  # noqa: PLC0415

    return WebSocketProtocol(**uvicorns)


class _TooLargeError(Exception):
    """Stops the parser. The client gets HeadTooLargeError."""


class _BoundedProtocol(HttpToolsProtocol):
    """One connection, with limits on its bytes and times."""

    def __init__(self, limits: ConnectionLimits, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.parser = Parser(self, self._accepts_upgrade)  # type: ignore[assignment]
        self._limits = limits
        self._clock: TimerHandle | None = None
        """Limits the time of a head, of the rest of a body after its answer, or of lingering."""
        self._stall_clock: StallClock
        self._unanswered: deque[RequestResponseCycle] = deque()
        """Requests with a whole head: the first is being served, the others wait for it."""
        self._num_pipelined_bytes = 0
        """Bytes received since the first of them was complete."""
        self._num_pending_bytes = 0
        """Bytes received since the last complete head, piece of a body or end of a message."""
        self._num_header_bytes = 0
        self._is_body_open = False
        """Whether the last request is not complete yet, whether or not it is answered."""
        self._is_too_large = False
        self._is_over = False
        """Whether the server serves nothing more here, and drops further bytes."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._stall_clock = StallClock(self.loop, transport, self._limits.write_stall_seconds)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks, and end every request as disconnected: uvicorn ends only the last."""
        self._stop_clock()
        self._stall_clock.stop()
        super().connection_lost(exc)
        for cycle in self._unanswered:
            disconnect(cycle)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and refuse a head that is too long."""
        if self._is_over:
            return
        if not self._unanswered:
            self._start_clock()
        elif not self._unanswered[0].more_body:
            self._num_pipelined_bytes += len(data)
        self._num_pending_bytes += len(data)
        super().data_received(data)
        if self._num_pending_bytes > self._limits.max_head_bytes:
            self._refuse_size()
        elif self._num_pipelined_bytes > _MAX_PIPELINED_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        self._num_header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer of a chunked body."""
        if len(self.headers) >= self._limits.max_headers:
            self._stop_parsing()
        self._count_header_bytes(len(name) + len(value) + _HEADER_OVERHEAD)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request. It may wait for the request before it."""
        self._stop_clock()
        if not self.flow.write_paused:  # an unread rest of the last answer says nothing about this one
            self._stall_clock.stop()
        self._num_pending_bytes = 0
        super().on_headers_complete()
        if self.parser.should_upgrade():
            return
        self._is_body_open = True
        self._unanswered.append(self.cycle)
        self.scope["extensions"] = {CHUNKS: ChunkWriter(self.cycle).describe()}
        close = partial(self._close_after, self.cycle)
        self.cycle.transport = AnswerTransport(self.transport, close)  # type: ignore[assignment]
        if len(self._unanswered) > 1:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on. The application limits the body's size."""
        self._num_pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Begin to count the next head, and its time if this request is already answered."""
        self._num_pending_bytes = 0
        self._is_body_open = False
        super().on_message_complete()
        if not self._unanswered:
            self._stop_clock()
            self._start_clock()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that can't be parsed, or a head that is too large."""
        if self._is_too_large:
            self._refuse_size()
        else:
            self._refuse(BadRequestError(msg))

    def on_response_complete(self) -> None:
        """Begin the time in which the client reads the rest of the answer and sends the rest of the body."""
        cycle = self._unanswered.popleft()
        del cycle.scope["extensions"]  # a reference cycle: it refers to the request
        cycle.transport = self.transport  # the AnswerTransport refers to the request too
        self._num_pipelined_bytes = 0
        super().on_response_complete()
        self._stall_clock.start()
        if self._is_answered_early:
            self._unset_keepalive_if_required()
            self._start_clock()

    def shutdown(self) -> None:
        """End the connection after its answers. A lingering connection ends by itself."""
        if self._unanswered or not self._is_over:
            super().shutdown()

    def pause_writing(self) -> None:
        """Watch whether the client reads: the write buffer is full."""
        super().pause_writing()
        self._stall_clock.start()

    def resume_writing(self) -> None:
        """Stop watching, because the client reads. After the last answer, watch it read the rest."""
        self._stall_clock.stop()
        super().resume_writing()
        if not self._unanswered:
            self._stall_clock.start()

    @property
    def _is_answered_early(self) -> bool:
        return self._is_body_open and not self._unanswered

    def _accepts_upgrade(self) -> bool:
        """Whether the head asks for the WebSocket. It gets none behind an unanswered request."""
        path = self.url.partition(b"?")[0]
        return path == PATH_STREAM.encode() and not self._unanswered and self._should_upgrade()

    def _count_header_bytes(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > self._limits.max_head_bytes:
            self._stop_parsing()

    def _stop_parsing(self) -> NoReturn:
        self._is_too_large = True
        raise _TooLargeError

    def _refuse_size(self) -> None:
        limits = self._limits
        self._refuse(
            HeadTooLargeError(
                f"the request's head is too large: this server takes at most {limits.max_headers} headers and"
                f" {limits.max_head_bytes} bytes of request line and headers"
            )
        )

    def _refuse(self, error: ApiError) -> None:
        """Refuse the newest request and end the connection.

        If requests before it are unanswered, the server answers those, and the refusal is not sent.
        """
        if self.transport.is_closing() or self._is_over:
            return
        self._is_over = True
        self._stop_clock()
        if self._is_answered_early:
            self._linger()
            return
        at_fault = self._unanswered.pop() if self._unanswered and self._unanswered[-1].more_body else None
        if at_fault is not None:
            disconnect(at_fault)
        if self._unanswered:
            self._unanswered[-1].keep_alive = False  # uvicorn closes after its answer
        elif at_fault is not None and at_fault.response_started:
            self.transport.close()
        else:
            self.transport.write(_render_refusal(error))
            self._linger()

    def _close_after(self, cycle: RequestResponseCycle) -> None:
        """Close after an answer, or inside a failed one. Linger if the client is still sending."""
        is_sending = self._is_body_open or self._is_over
        if cycle.response_complete and is_sending and not self.transport.is_closing():
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Send the buffered bytes, serve nothing more, and close after a moment."""
        self._is_over = True
        self.pipeline.clear()
        self._stop_clock()
        self.transport.write_eof()
        self._stall_clock.start()
        self._clock = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _start_clock(self) -> None:
        if self._clock is None:
            seconds = self._limits.body_seconds if self._is_body_open else self._limits.head_seconds
            self._clock = self.loop.call_later(seconds, self._expire)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _expire(self) -> None:
        if self._num_pending_bytes:
            seconds = self._limits.head_seconds
            self._refuse(RequestTimeoutError(f"the request's head did not come within {seconds:g} s"))
        else:
            self.transport.close()


def _render_refusal(error: ApiError) -> bytes:
    body = error.encode()
    return (
        b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b"
        % (error.status, HTTPStatus(error.status).phrase.encode(), len(body), body)
    )
