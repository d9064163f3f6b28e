"""The gateway's answers for web pages of other origins. It answers preflights itself: they name no model."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from millrace_runtime.cors import CorsPolicy

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_cors(app: web.Application, policy: CorsPolicy) -> None:
    """Have an application answer preflights, and add the policy's headers to every answer."""

    @web.middleware
    async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = policy.preflight_headers(request.method, request.headers)
        return await handler(request) if headers is None else web.Response(status=204, headers=headers)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        if "Access-Control-Max-Age" not in response.headers:
            response.headers.extend(policy.answer_headers(request.headers.get("origin")))

    app.middlewares.append(answer_preflight)
    app.on_response_prepare.append(add_headers)
