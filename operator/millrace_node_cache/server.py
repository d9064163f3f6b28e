"""The HTTP server of the process: /metrics and /livez."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from millrace_runtime.contract import ENV_BIND_ADDRESS, PATH_LIVE, PATH_METRICS
from millrace_runtime.listener import BACKLOG, describe_failure, open_listener

STILL_LIMIT_SECONDS = 900.0
"""A look that removes terabytes of models takes long."""


class BadStartError(Exception):
    """The process cannot start; the text says what to do."""


@asynccontextmanager
async def serve(
    registry: CollectorRegistry, still_seconds: Callable[[], float], address: str, port: int
) -> AsyncIterator[web.BaseSite]:
    """Serve while entered. Raises BadStartError if the address cannot be bound."""
    try:
        listener = open_listener(address, port)
    except OSError as error:
        raise BadStartError(
            describe_failure(error, address, port, address_setting=ENV_BIND_ADDRESS)
        ) from error
    runner = web.AppRunner(build_app(registry, still_seconds), access_log=None)
    await runner.setup()
    try:
        site = web.SockSite(runner, listener, backlog=BACKLOG)
        await site.start()
        yield site
    finally:
        await runner.cleanup()


def build_app(registry: CollectorRegistry, still_seconds: Callable[[], float]) -> web.Application:
    """Return the HTTP application. `still_seconds` returns the seconds since the last look ended."""

    async def render_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def render_life(_request: web.Request) -> web.Response:
        still = still_seconds()
        return web.json_response({"still_seconds": still}, status=200 if still < STILL_LIMIT_SECONDS else 503)

    app = web.Application()
    app.router.add_get(PATH_METRICS, render_metrics)
    app.router.add_get(PATH_LIVE, render_life)
    return app
