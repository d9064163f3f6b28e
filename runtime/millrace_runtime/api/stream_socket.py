"""GET /v1/stream, a WebSocket: many requests in one connection, each message a request or part of an answer.

A client sends `{"id": …, "request": {…}}`, with a body of /v1/chat/completions or /v1/completions, and
`{"cancel": id}`. It gets `{"id": …, "chunk": {…}}` for each chunk, and at a request's end one message with
its id and `done`, `error` or `cancelled`.
"""

import asyncio
from typing import Annotated

import msgspec
import orjson
from msgspec import Meta
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from millrace_runtime.api.dialects import CHAT, COMPLETIONS
from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.exchange import Exchange
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.request.cache_salt import SENDER, list_senders
from millrace_runtime.api.request.decoding import decode_mended
from millrace_runtime.cors import CorsPolicy

_MAX_REQUESTS = 128
"""In flight in one connection."""
_EVENT = b"data: "
_DONE = b"[DONE]"
_ERROR = b'{"error":'
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class ClientMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A client's message: a request with its id, or the id of one to cancel."""

    id: Id | None = None
    request: msgspec.Raw = msgspec.Raw()
    cancel: Id | None = None


class _Kind(msgspec.Struct):
    """The field that only a chat's body has."""

    messages: msgspec.Raw = msgspec.Raw()


class StreamSocket:
    """One connection and its requests."""

    def __init__(self, replica: ReplicaState, socket: WebSocket) -> None:
        self._replica = replica
        self._socket = socket
        self._senders = [(SENDER, value) for value in list_senders(socket.scope)]
        """Headers of the handshake that count for each request."""
        self._calls: dict[str, _Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the client closes the connection, which cancels its requests."""
        if not self._may_connect():
            await self._socket.close()
            return
        await self._socket.accept()
        try:
            while True:
                data = await self._receive()
                try:
                    self._handle(data)
                except BadRequestError as error:
                    await self.send(None, error.encode()[1:-1])
                await asyncio.sleep(0)  # a message that is already there gives other tasks no turn
        except WebSocketDisconnect:
            pass
        finally:
            for call in self._calls.values():
                call.cancel()
            await asyncio.gather(*self._tasks)

    async def send(self, request_id: str | None, field: bytes) -> bool:
        """Send a message with a field behind the id. Return whether the client is still there."""
        try:
            await self._socket.send_text((b'{"id":%b,%b}' % (orjson.dumps(request_id), field)).decode())
        except (WebSocketDisconnect, RuntimeError):  # it has left, or we have closed
            return False
        return True

    def _may_connect(self) -> bool:
        """Whether the client is no web page, or a page of an allowed origin.

        Browsers send no preflight before a WebSocket. Some clients that are no page name the server itself as
        their origin.
        """
        headers = self._socket.headers
        origin = headers.get("origin")
        if origin is None or origin.partition("//")[2] == headers.get("host"):
            return True
        return CorsPolicy(self._replica.settings.allowed_origins).allows(origin)

    async def _receive(self) -> bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        return message.get("bytes") or (message.get("text") or "").encode()

    def _handle(self, data: bytes) -> None:
        """Begin or cancel a request. Raises BadRequestError for a message that is neither."""
        try:
            message = decode_mended(data, ClientMessage)
            kind = decode_mended(bytes(message.request) or b"{}", _Kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequestError(f"the message can't be read: {error}") from error
        if message.cancel is not None and message.id is None and not message.request:
            if message.cancel in self._calls:
                self._calls[message.cancel].cancel()
            return
        if message.id is None or not message.request or message.cancel is not None:
            raise BadRequestError('send {"id": …, "request": {…}}, or {"cancel": id}')
        if message.id in self._calls:
            raise BadRequestError(f"the request {message.id!r} is in flight: give each an id of its own")
        if len(self._calls) >= _MAX_REQUESTS:
            raise BadRequestError(
                f"{_MAX_REQUESTS} requests are in flight in this connection: open another one"
            )
        call = self._calls[message.id] = _Call(self, message.id, bytes(message.request), self._senders)
        dialect = CHAT if kind.messages else COMPLETIONS
        exchange = Exchange(self._replica, dialect, call.scope, call.receive, call.send)
        task = asyncio.create_task(self._run(exchange, message.id, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: Exchange, request_id: str, call: "_Call") -> None:
        try:
            await exchange.run()
        finally:
            del self._calls[request_id]
        if not call.has_failed:
            await self.send(request_id, b'"cancelled":true' if call.is_cancelled else b'"done":true')


class _Call:
    """The connection of one exchange: it gets the body at once, and its answer leaves as messages."""

    def __init__(
        self, socket: StreamSocket, request_id: str, body: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """`headers` and `body` are those of the request."""
        self._socket = socket
        self._request_id = request_id
        self._body: bytes | None = body
        self._cancelled = asyncio.Event()
        self._status = 200
        self.scope = {"type": "http", "headers": headers}
        self.has_failed = False
        """Whether the client got an error."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request, or has left."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the request, as if its client had left."""
        self._cancelled.set()

    async def receive(self) -> Message:
        """Return the body, and then wait until the request is cancelled."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._cancelled.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send the events of an answer, or a whole answer, each as a message."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        body = message["body"]
        events = body.split(b"\n\n") if body.startswith((_EVENT, b":")) else [_EVENT + body]
        for event in events:
            if not event.startswith(_EVENT) or event == _EVENT + _DONE:
                continue  # a comment, or nothing behind the last event
            if not await self._send_part(event.removeprefix(_EVENT)):
                self.cancel()

    async def _send_part(self, part: bytes) -> bool:
        if not part.startswith(_ERROR):
            return await self._socket.send(self._request_id, b'"chunk":' + part)
        self.has_failed = True
        status = b"" if self._status == 200 else b'"status":%d,' % self._status
        return await self._socket.send(self._request_id, status + part[1:-1])
