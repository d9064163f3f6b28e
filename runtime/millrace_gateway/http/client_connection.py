"""One connection of a client: parses its requests, has each handled in turn, and sends their answers.

A request is handled by a task of its own. The answer's body does not pass through that task: what writes it
registers as the connection's `flow`, and learns at once if the client is slow, or leaves.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from millrace_gateway.errors import BusyError, RequestRefusedError, SlowHeadError
from millrace_gateway.http.backlog import Backlog
from millrace_gateway.http.client_writer import ClientWriter
from millrace_gateway.http.head import Headers
from millrace_gateway.http.request import Request, write_last
from millrace_gateway.http.request_parser import RequestHead, RequestParser, find_piece_end
from millrace_gateway.http.sockets import CLIENT_SECONDS, keep_alive, reset

if TYPE_CHECKING:
    from millrace_gateway.http.server import HttpServer

logger = logging.getLogger(__name__)


class ClientConnection(asyncio.Protocol):
    """Owner of one connection's state, from its first byte to its last."""

    __slots__ = (
        "_active",
        "_backlog",
        "_deadline",
        "_is_over",
        "_newest",
        "_num_written_before",
        "_parser",
        "_server",
        "_task",
        "_transport",
        "writer",
    )

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._transport: asyncio.Transport
        self.writer: ClientWriter
        self._parser = RequestParser(self, server.limits)
        self._active: Request | None = None
        """The request that is being answered."""
        self._task: asyncio.Task[None] | None = None
        """It handles that request."""
        self._backlog = Backlog(server)
        """Requests and bytes behind the active one."""
        self._newest: Request | None = None
        """The last request whose head has arrived and that is not answered."""
        self._is_over = False
        """Whether nothing more is served here."""
        self._deadline = 0.0
        """When a wait for the client ends, by the loop's clock; 0: there is none."""
        self._num_written_before = 0
        """Bytes, at the start of the active request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        self._transport = transport
        self.writer = ClientWriter(transport, self._server.limits.stall_seconds)
        keep_alive(transport, CLIENT_SECONDS)
        self._server.connections.add(self)
        self._deadline = self._server.now() + self._server.limits.head_seconds

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """End what is still under way for this client, at once."""
        self._is_over = True
        self._server.connections.discard(self)
        self._backlog.clear()
        task = self._task
        self._task = self._active = self._newest = None
        if not self.writer.end() and task is not None:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes; behind a request that is being answered, hold them."""
        if self._newest is not None and self._newest.tunnel and self.writer.flow is not None:
            self.writer.flow.feed(data)
        else:
            self._take(data)

    def pause_writing(self) -> None:
        """Pause the source of the answer, because the client reads slowly."""
        self.writer.pause()

    def resume_writing(self) -> None:
        """Resume the source, or handle the next request, which waited for the client to read."""
        self.writer.is_paused = False
        if self._active is None and not self._is_over and self.writer.flow is None:
            self._go_on()
        self.writer.resume()

    def take_head(self, head: RequestHead) -> bool:
        """Have the request handled, unless another one is before it."""
        request = Request(self, head)
        self._newest = request
        if self._active is None:
            self._start(request)
            return True
        self._backlog.add(request)
        request.tunnel = False
        return False

    def take_body(self, piece: bytes) -> None:
        """Pass a piece of the body on."""
        if self._newest is not None:
            self._newest.feed(piece)

    def take_end(self) -> None:
        """Note the end of the request."""
        if self._newest is not None:
            self._newest.complete()

    def may_keep(self, request: Request) -> bool:
        """Whether the connection may outlive the answer that begins now."""
        return request.keeps_alive and request.is_complete and not self._server.is_draining

    def extra_headers(self, request: Request) -> Headers:
        """Return the headers that every answer gets."""
        return self._server.find_extra(request)

    def take_held(self) -> bytes:
        """Return the bytes behind the newest request, and read on."""
        held = self._backlog.take_held()
        self.resume_reading()
        return held

    def end_answer(self, request: Request) -> None:
        """Go on with the next request, or end the connection."""
        if request is not self._active:
            return
        self.writer.flow = self._active = self._task = None
        if not request.keeps_alive or self._transport.is_closing():
            self._finish(is_sending=self._is_over or not request.is_complete or bool(self._backlog.held))
        elif self.writer.is_paused:  # a client that does not read gets no further answers
            self.pause_reading()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Begin the next request, or wait for one."""
        following = self._backlog.take()
        if following is not None:
            self._start(following)
        else:
            self._newest = None
            self._deadline = self._server.now() + self._server.limits.idle_seconds
        if (held := self.take_held()) or following is not None:
            self._take(held)

    def cut(self, *, resets: bool) -> None:
        """End the connection within an answer."""
        self._is_over = True
        self.writer.flow = None
        if resets:
            reset(self._transport)
        else:
            self._transport.close()

    def pause_reading(self) -> None:
        """Read nothing more from the client for now."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def check(self, now: float) -> None:
        """End a wait that has taken too long."""
        if self._deadline and now >= self._deadline:
            self._expire()
            return
        is_sending = self.writer.is_paused or (self._is_over and self._active is None)
        if is_sending and not self.writer.is_progressing(now):
            self._transport.abort()

    def end_idle(self) -> None:
        """Close the connection if no request is under way."""
        if self._newest is None and not self._is_over and not self._parser.num_loose_bytes:
            self._finish(is_sending=False)

    def close(self) -> None:
        """End the connection once its bytes are sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._active is not None

    def _take(self, data: bytes) -> None:
        """Parse the bytes that are awaited, and hold the rest: a request takes more memory than its bytes."""
        start = 0
        while start < len(data) and self._may_parse:
            end = find_piece_end(data, start)
            self._feed(data[start:end])
            start = end
        backlog = self._backlog
        if start < len(data) and not self._is_over:
            backlog.held += data[start:]
        has_grown = not self._is_over and backlog.count(self._parser)
        is_full = len(backlog.held) > self._server.limits.max_pipelined_bytes
        if is_full and (self._active is None or self._active.tunnel):
            self.pause_reading()
        elif has_grown or is_full:
            self._shed()  # and read on: else a client that leaves would not show

    def _shed(self) -> None:
        """Keep only the request that is being answered: its connection, or all, keep more than they may."""
        if self._active is not None and self._active.is_complete:
            self._backlog.clear(self._parser.num_kept_bytes)
            self._newest, self._active.keeps_alive, self._is_over = self._active, False, True
        else:
            text = "The gateway has no memory left for heads that arrive in parts. Send the request again."
            self._refuse(BusyError(text, retry_after_seconds=1))

    @property
    def _may_parse(self) -> bool:
        newest = self._newest
        return not self._is_over and (newest is None or (newest is self._active and not newest.is_complete))

    def _feed(self, data: bytes) -> None:
        is_first = self._newest is None and not self._parser.num_loose_bytes
        try:
            self._backlog.held = self._parser.feed(data)
        except RequestRefusedError as refusal:
            self._refuse(refusal)
            return
        if is_first and self._newest is None:
            self._deadline = self._server.now() + self._server.limits.head_seconds

    def _start(self, request: Request) -> None:
        self._active = request
        self._num_written_before = self.writer.num_written
        self._deadline = 0.0
        self._task = self._server.spawn(request, self)

    def end_task(self, task: asyncio.Task[None]) -> None:
        """Note the end of a handler. One that failed leaves its client without a whole answer."""
        if not task.cancelled() and task.exception() is not None:
            logger.error("a request failed", exc_info=task.exception())
            if task is self._task:
                self.cut(resets=True)

    def _refuse(self, refusal: RequestRefusedError) -> None:
        """Refuse the newest request. Those before it are answered first, and the refusal is not sent."""
        newest = self._newest
        if newest is not None and newest.is_complete:  # so these bytes are behind it
            newest.keeps_alive = False
            self._is_over = newest is not self._active
            return
        if newest is not None and newest is not self._active:
            last = self._backlog.drop_newest() or self._active
            if last is not None:
                last.keeps_alive = False
            self._newest = last
            self._is_over = True
            return
        if newest is not None and self._task is not None:
            self._task.cancel()
            if self.writer.num_written > self._num_written_before:
                self.cut(resets=False)
                return
        self._server.note_refusal(refusal)
        self.writer.write(write_last(refusal))
        self._finish(is_sending=True)

    def _finish(self, *, is_sending: bool) -> None:
        """Close the connection. If the client is still sending, an immediate close would reset it."""
        self._is_over = True
        self._backlog.held = b""
        if self._transport.is_closing():
            return
        if not (is_sending or self._server.is_draining):
            self._transport.close()
            return
        self._transport.write_eof()  # a process that drains may end before the kernel has sent everything
        self._transport.resume_reading()
        if is_sending:
            self._deadline = self._server.now() + self._server.limits.linger_seconds

    def _expire(self) -> None:
        self._deadline = 0.0
        if self._parser.num_loose_bytes and not self._is_over:
            seconds = self._server.limits.head_seconds
            self._refuse(SlowHeadError(f"The request's head did not arrive within {seconds:g} s."))
        else:
            self._transport.close()
