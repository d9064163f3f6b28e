"""How far a fetch is, for whoever asks over HTTP: the operator does, for the status of a service."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from aiohttp import web

from millrace_fetch.transfer.watcher import Watch
from millrace_runtime import contract
from millrace_runtime.listener import open_listener


class Tally:
    """Counts, and passes on what it is told. Nothing is counted before the size is known."""

    def __init__(self, watch: Watch, clock: Callable[[], float] = monotonic) -> None:
        self._watch = watch
        self._clock = clock
        self._total: int | None = None
        self._first = self._done = 0
        self._began: float | None = None

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Begin to count, with what is there."""
        self._total, self._first, self._done = total_bytes, done_bytes, done_bytes
        self._began = self._clock()
        self._watch.begin(total_bytes, done_bytes)

    def advance(self, num_bytes: int) -> None:
        """Count."""
        self._done += num_bytes
        self._watch.advance(num_bytes)

    def say(self, text: str) -> None:
        """Pass it on."""
        self._watch.say(text)

    def render(self) -> dict[str, int]:
        """Return the counts, and the rate since the beginning; none before it, no total that nobody knows."""
        if self._began is None:
            return {}
        rate = (self._done - self._first) / max(self._clock() - self._began, 1e-3)
        total = {} if self._total is None else {"totalBytes": self._total}
        return total | {"doneBytes": self._done, "bytesPerSecond": max(0, round(rate))}


@asynccontextmanager
async def telling(tally: Tally, address: str, port: int) -> AsyncIterator[int]:
    """Answer at contract.PATH_PROGRESS while entered. Yield the port. Raises OSError where it is taken."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(tally.render())

    app = web.Application()
    app.router.add_get(contract.PATH_PROGRESS, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        listener = open_listener(address, port)
        await web.SockSite(runner, listener).start()
        yield listener.getsockname()[1]
    finally:
        await runner.cleanup()
