"""Begins the answer of a stream that waits long, so that load balancers do not take it for dead.

The load balancers of clouds cut a connection after 60 s without a byte, and a replica may take minutes to
start. So BEGIN_SECONDS after a request's first wait the gateway sends its client the status 200 and a
comment, and then a comment every COMMENT_SECONDS until a replica's answer begins, also between two waits.
Before that the client can still get a 503; afterwards a refusal is the stream's last event.
"""

import asyncio

from millrace_gateway.errors import RequestRefusedError
from millrace_gateway.front.refusals import write_document, write_event
from millrace_gateway.http.answer import Answer
from millrace_gateway.http.head import EVENT_STREAM, Headers
from millrace_gateway.http.request import Request

BEGIN_SECONDS = 10.0
COMMENT_SECONDS = 15.0
COMMENT = b": waiting\n\n"
_HEADERS: Headers = [
    (b"content-type", EVENT_STREAM + b"; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EarlyStream:
    """The answer of one request that asks for a stream, while it waits."""

    __slots__ = ("_request", "_timer", "answer")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._timer: asyncio.TimerHandle | None = None
        self.answer: Answer | None = None
        """The answer, once it has begun."""

    def start(self) -> None:
        """Begin to wait, unless it already has."""
        if self._timer is None:
            seconds = BEGIN_SECONDS if self.answer is None else COMMENT_SECONDS
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def stop(self) -> None:
        """Stop: a replica answers, or the request ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse(self, refusal: RequestRefusedError) -> None:
        """End the begun stream with the refusal."""
        assert self.answer is not None
        self.answer.end(write_event(refusal, self._request.path))

    def end(self, document: bytes) -> None:
        """End the begun stream with a replica's document: its own refusal."""
        assert self.answer is not None
        self.answer.end(write_document(document, self._request.path))

    def _tick(self) -> None:
        self._timer = None
        if self.answer is None:
            self.answer = self._request.begin(200, _HEADERS)
        self.answer.write(COMMENT)
        self.start()
