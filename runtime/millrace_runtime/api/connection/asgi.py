"""The two halves of an ASGI exchange: a body that is read within limits, and an answer of encoded bytes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Receive, Scope, Send

from millrace_runtime.api.errors import (
    ApiError,
    BodyTooLargeError,
    ClientGoneError,
    RequestTimeoutError,
    UnavailableError,
)
from millrace_runtime.api.usage import open_report
from millrace_runtime.contract import HEADER_DRAINING, HEADER_USAGE

_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else an nginx between would buffer the chunks
]
_USAGE = HEADER_USAGE.lower().encode()
COMMENT = b": waiting\n\n"
"""Clients of server-sent events skip it."""
CHUNKS = "millrace.chunks"
"""An ASGI extension of our server. Its `write` writes bytes as the next chunk of a started answer and returns
True. It returns False if `send` must write them. Its `inform` writes a header before an answer starts, in a
head of its own."""


class Body:
    """A request's body. It is read once, within a size and a time; then a watch reports a disconnect."""

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int, max_seconds: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._declared_bytes = _read_length(scope)
        self.is_disconnected = False

    def check_declared(self) -> None:
        """Raise BodyTooLargeError if the declared length is too large."""
        self._check_size(self._declared_bytes)

    async def read(self, on_growth: Callable[[int], None]) -> bytearray:
        """Return the body, and call `on_growth` with its size after each piece.

        Raises BodyTooLargeError as soon as the body is too large, RequestTimeoutError, ClientGoneError, and
        the errors of `on_growth`.
        """
        try:
            async with asyncio.timeout(self._max_seconds):
                return await self._read_pieces(on_growth)
        except TimeoutError as error:
            raise RequestTimeoutError(f"the body did not come within {self._max_seconds:g} s") from error

    async def _read_pieces(self, on_growth: Callable[[int], None]) -> bytearray:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            body += message.get("body", b"")
            self._check_size(len(body))
            on_growth(len(body))
            if not message.get("more_body", False):
                return body

    @contextmanager
    def watch(self, on_disconnect: Callable[[], None]) -> Iterator[None]:
        """Call `on_disconnect` if the client leaves inside this context."""
        watcher = asyncio.create_task(self._wait_disconnect(on_disconnect))
        try:
            yield
        finally:
            watcher.cancel()

    async def _wait_disconnect(self, on_disconnect: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_disconnected = True
        on_disconnect()

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise BodyTooLargeError(f"the body is over this server's limit of {self._max_bytes} bytes")


class Answer:
    """A request's answer: one JSON document, or server-sent events. The first write sends the status."""

    def __init__(
        self,
        scope: Scope,
        send: Send,
        encode_error: Callable[[ApiError], bytes],
        encode_error_event: Callable[[ApiError], bytes],
    ) -> None:
        """The last two encode an error in the client's dialect: as a whole answer, as a stream's event."""
        self._send = send
        self._encode_error = encode_error
        self.encode_error_event = encode_error_event
        """Returns an error as a stream's last event. The exchange replaces it once it has a writer: only
        the writer knows the number of the event."""
        own = scope.get("extensions", {}).get(CHUNKS, {})
        self._write_chunk: Callable[[bytes], bool] | None = own.get("write")
        self._inform: Callable[[bytes, bytes], None] | None = own.get("inform")
        self._is_started = False
        self.report = open_report(scope)
        """How the answer reports its usage; None unless the request asks for it."""

    async def send_json(
        self, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Send a whole answer."""
        length = str(len(body)).encode()
        lines = [(b"content-type", b"application/json"), (b"content-length", length), *(headers or [])]
        if self.report is not None:
            lines.append((_USAGE, self.report.encode()))
        self._is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": lines})
        await self._send({"type": "http.response.body", "body": body})

    def report_silence(self) -> None:
        """Report the use so far, if that is due and no event goes out with it: the client may leave first.

        Whole answers have no events, and streams have none for tokens without text.
        """
        if self.report is None or not (self._is_started or self.report.is_early):
            return
        if (report := self.report.poll(time.monotonic())) is None:
            return
        if self._is_started and self._write_chunk is not None:
            self._write_chunk(report)
        elif not self._is_started and self._inform is not None:
            self._inform(_USAGE, self.report.encode())

    async def send_events(self, events: bytes) -> None:
        """Send events in one write. A report that is due comes before them, in a chunk of its own."""
        if not self._is_started:
            await self._start_events()
        if self.report is not None and (report := self.report.poll(time.monotonic())) is not None:
            await self._send_chunk(report)
        await self._send_chunk(events)

    def write_events(self, events: bytes) -> bool:
        """Send events of a started answer without waiting. Return False if `send_events` must send them."""
        if self._write_chunk is None or (self.report is not None and self.report.is_due(time.monotonic())):
            return False
        return self._write_chunk(events)

    async def end_events(self, events: bytes) -> None:
        """Send the last events. A report comes after them."""
        if not self._is_started:
            await self._start_events()
        if self.report is None:
            await self._send_chunk(events, more=False)
        else:
            await self._send_chunk(events)
            await self._send_chunk(self.report.encode_event(), more=False)

    def cut_events(self) -> None:
        """Send the last report of a started stream that this server cuts."""
        if self._is_started and self.report is not None and self._write_chunk is not None:
            self._write_chunk(self.report.encode_event())

    async def _start_events(self) -> None:
        self._is_started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})

    async def _send_chunk(self, chunk: bytes, *, more: bool = True) -> None:
        if more and self._write_chunk is not None and self._write_chunk(chunk):
            return
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def fail(self, error: ApiError, *, closes: bool = False) -> None:
        """Answer with the error: as the status, or as the last event of a started stream.

        `closes` ends the connection after the answer, so that the client may ask another replica.
        """
        closes = closes or isinstance(error, RequestTimeoutError)  # the rest of the body may never arrive
        if self._is_started:
            await self.end_events(self.encode_error_event(error))
            return
        headers = [(b"connection", b"close")] if closes else []
        if closes and isinstance(error, UnavailableError):
            headers.append((HEADER_DRAINING.lower().encode(), b"1"))
        if error.retry_after is not None:
            headers.append((b"retry-after", str(error.retry_after).encode()))
        await self.send_json(error.status, self._encode_error(error), headers)


def _read_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
