"""The ASGI layers around the application: the gateway's token, CORS, and headers of every answer."""

import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace_runtime.api.errors import GatewayTokenError
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.contract import (
    HEADER_GATEWAY_TOKEN,
    HEADER_LOAD,
    HEADER_WAITED,
    PATH_LIVE,
    PATH_METRICS,
    PATH_READY,
)
from millrace_runtime.cors import CorsPolicy

if TYPE_CHECKING:  # it loads cryptography, which a replica without keys does not need
    from millrace_runtime.gateway_token import TokenVerifier

OPEN_PATHS = frozenset({PATH_LIVE, PATH_READY, PATH_METRICS, "/health", "/version"})
"""Paths that need no token: kubelets and Prometheus have none."""
LONGEST_WAIT_SECONDS = 86_400.0
"""No gateway lets a request wait for longer. A larger number counts as no wait."""
_TOKEN = HEADER_GATEWAY_TOKEN.lower().encode()
_WAITED = HEADER_WAITED.lower().encode()
_WAITED_KEY = "millrace_waited"
"""Of the ASGI scope."""
_LOAD = HEADER_LOAD.lower().encode()
_CLOSE = (b"connection", b"close")


class TokenLayer:
    """Refuses requests and WebSockets without a valid token of the gateway."""

    def __init__(self, app: ASGIApp, verifier: "TokenVerifier") -> None:
        self._app = app
        self._verifier = verifier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._has_token(scope):
            _note_waited(scope)
            await self._app(scope, receive, send)
            return
        error = GatewayTokenError(
            "this replica answers only its gateway: call the address of the service, which is the gateway's,"
            " with an API key of the service",
            code="gateway_token_required",
        )
        headers = {HEADER_GATEWAY_TOKEN: "refused"}  # by it a gateway knows that the client is not at fault
        answer = Response(error.encode(), error.status, headers, "application/json")
        await answer(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        """Whether the request has one token, and it is valid."""
        tokens = [value for name, value in scope["headers"] if name == _TOKEN]
        return len(tokens) == 1 and self._verifier.is_valid(tokens[0].decode("latin-1"), time.time())


def read_waited(scope: Scope) -> float:
    """Return the seconds for which a request has waited at its gateway; 0 without a gateway's token.

    Latencies begin so much earlier, because the client has waited since then.
    """
    waited: float = scope.get(_WAITED_KEY, 0.0)
    return waited


def _note_waited(scope: Scope) -> None:
    """Copy the gateway's header into the scope. Only a request with a token may have it believed."""
    values = (_parse_seconds(value) for name, value in scope["headers"] if name == _WAITED)
    scope[_WAITED_KEY] = next(values, 0.0)


def _parse_seconds(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return seconds if 0.0 <= seconds <= LONGEST_WAIT_SECONDS else 0.0


class CorsLayer:
    """Answers preflights, and adds the policy's headers to every answer."""

    def __init__(self, app: ASGIApp, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        preflight = self._policy.preflight_headers(scope["method"], headers)
        if preflight is not None:
            await Response(status_code=204, headers=preflight)(scope, receive, send)
            return
        more = self._policy.answer_headers(headers.get("origin"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in more.items():
                    answer.append(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class StateLayer:
    """Adds the replica's load to every answer, and `Connection: close` while the replica drains."""

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
        """Return a new list with the headers and ours: many answers may share one list."""
        more = [(_LOAD, self._replica.read_load().encode())]
        if self._replica.is_draining and _CLOSE not in headers:
            more.append(_CLOSE)
        return [*headers, *more]
