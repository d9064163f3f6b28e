"""What every answer says of its replica: the load, and while it drains, that the connection ends."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace_runtime.api.load import read_load
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.contract import HEADER_LOAD

_LOAD = HEADER_LOAD.lower().encode()
_CLOSE = (b"connection", b"close")


class StateHeaders:
    """An ASGI layer that adds the headers."""

    def __init__(self, app: ASGIApp, replica: ReplicaState) -> None:
        self._app = app
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_state(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._add_to(message["headers"])
            await send(message)

        await self._app(scope, receive, send_with_state)

    def _add_to(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers and ours. A list of headers may be shared by many answers."""
        more = [(_LOAD, read_load(self._replica).encode())]
        if self._replica.is_draining and _CLOSE not in headers:
            more.append(_CLOSE)
        return [*headers, *more]
