"""Answers only requests with a gateway's token, where the replica has keys: an ASGI layer around the rest."""

import time

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from millrace_runtime.api.connection.waited import note_waited
from millrace_runtime.api.errors import GatewayTokenError
from millrace_runtime.contract import HEADER_GATEWAY_TOKEN, PATH_LIVE, PATH_METRICS, PATH_READY
from millrace_runtime.gateway_token import TokenVerifier

OPEN_PATHS = frozenset({PATH_LIVE, PATH_READY, PATH_METRICS, "/health", "/version"})
"""Paths that need no token: kubelets and Prometheus have none."""
_TOKEN = HEADER_GATEWAY_TOKEN.lower().encode()


class TokenLayer:
    """Refuses requests and WebSockets without a valid token."""

    def __init__(self, app: ASGIApp, verifier: TokenVerifier) -> None:
        self._app = app
        self._verifier = verifier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._has_token(scope):
            note_waited(scope)
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
