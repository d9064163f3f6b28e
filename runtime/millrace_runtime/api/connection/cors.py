"""The replica's answers for web pages of other origins: an ASGI layer around the application."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace_runtime.cors import CorsPolicy


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
