"""Shows the progress of a fetch: as lines in a pod's log, and over HTTP to the operator."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Self, TextIO

from millrace_fetch.progress import Watch
from millrace_fit.units import show_bytes, show_seconds
from millrace_runtime import contract
from millrace_runtime.listener import open_listener

_LINE_PERCENT = 10
_LINE_SECONDS = 30.0
_LEAST_SECONDS = 1.0
"""Between two lines: a small model is fetched faster than anybody reads."""


class Meter:
    """Decides when a line of progress is due, and returns it. Pure: the caller gives the time."""

    def __init__(self, total_bytes: int | None, done_bytes: int, now: float) -> None:
        self._total = total_bytes
        self._first = self._done = done_bytes
        self._began = self._shown_at = now
        self._shown_percent = self._percent

    @property
    def _percent(self) -> int:
        if self._total is None:
            return 0
        return min(100, 100 * self._done // self._total) if self._total else 100

    def advance(self, num_bytes: int, now: float) -> str | None:
        """Count bytes. Return a line after each 10 % and after 30 s, else None."""
        self._done += num_bytes
        is_step = self._percent // _LINE_PERCENT > self._shown_percent // _LINE_PERCENT
        if now - self._shown_at < (_LEAST_SECONDS if is_step else _LINE_SECONDS):
            return None
        self._shown_percent, self._shown_at = self._percent, now
        return self._describe(now)

    def _describe(self, now: float) -> str:
        rate = (self._done - self._first) / max(now - self._began, 1e-3)
        if self._total is None:
            return f"{show_bytes(self._done)}, {show_bytes(rate)}/s"
        line = (
            f"{self._percent} %, {show_bytes(self._done)} of {show_bytes(self._total)}, {show_bytes(rate)}/s"
        )
        left = self._total - self._done
        return line if left <= 0 or rate <= 0 else f"{line}, {show_seconds(left / rate)} left"


class Lines:
    """Shows progress as lines, for a pod's log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._meter = Meter(0, 0, monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: each line is already written."""

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Write the size of the fetch."""
        self._meter = Meter(total_bytes, done_bytes, monotonic())
        there = f", {show_bytes(done_bytes)} of them are on the disk" if done_bytes else ""
        size = "files, not all of a known size" if total_bytes is None else show_bytes(total_bytes)
        self.say(f"fetching {size}{there}")

    def advance(self, num_bytes: int) -> None:
        """Count, and write a line when one is due."""
        if line := self._meter.advance(num_bytes, monotonic()):
            self.say(line)

    def say(self, text: str) -> None:
        """Write a line."""
        self._stream.write(f"millrace fetch: {text}\n")
        self._stream.flush()


class Tally:
    """Counts the bytes of a fetch for the HTTP endpoint, and passes the progress on."""

    def __init__(self, watch: Watch, clock: Callable[[], float] = monotonic) -> None:
        self._watch = watch
        self._clock = clock
        self._total: int | None = None
        self._first = self._done = 0
        self._began: float | None = None

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Start to count, with the bytes that are on the disk."""
        self._total, self._first, self._done = total_bytes, done_bytes, done_bytes
        self._began = self._clock()
        self._watch.begin(total_bytes, done_bytes)

    def advance(self, num_bytes: int) -> None:
        """Count bytes."""
        self._done += num_bytes
        self._watch.advance(num_bytes)

    def say(self, text: str) -> None:
        """Pass the text on."""
        self._watch.say(text)

    def render(self) -> dict[str, int]:
        """Return the counts and the rate since `begin`: empty before it, without `totalBytes` if unknown."""
        if self._began is None:
            return {}
        rate = (self._done - self._first) / max(self._clock() - self._began, 1e-3)
        total = {} if self._total is None else {"totalBytes": self._total}
        return total | {"doneBytes": self._done, "bytesPerSecond": max(0, round(rate))}


@asynccontextmanager
async def serving(tally: Tally, address: str, port: int) -> AsyncIterator[int]:
    """Serve contract.PATH_PROGRESS while entered. Yields the port. Raises OSError if the port is taken."""
    from aiohttp import web  # noqa: PLC0415  a fetch without a port does not need it

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
