"""Runs a fetch, or a look at a source, until it is done, gets SIGTERM, or makes no progress for too long.

Each function imports the libraries that only it needs: imports for others took a quarter of a fetch's start.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import Self, TypeVar

from millrace_fetch.cli.progress_output import Lines, Tally, serving
from millrace_fetch.fetch import Outcome, fetch, open_source
from millrace_fetch.plan.uri import Order
from millrace_fetch.progress import Watch
from millrace_fetch.sources.source import Source
from millrace_fit.units import show_bytes
from millrace_runtime.listener import read_bind_address

LIMIT_SECONDS = 4500.0
"""More than the longest Retry-After that is waited for, an hour, and more than a hash of 500 GB takes."""
TICK_SECONDS = 5.0
EXIT_STUCK = 1

Result = TypeVar("Result")


def resolve_remote(order: Order, path: Path) -> str:
    """Resolve a model at its source into a JSON file, and return a summary line."""
    from millrace_fetch.cli.local_model import write_resolved  # noqa: PLC0415
    from millrace_fetch.cli.remote_model import resolve  # noqa: PLC0415

    with Lines(sys.stderr) as watch:
        found = asyncio.run(_run_until_sigterm(resolve(order, open_source(order), watch.say)))
    write_resolved(found, path)

    if found.facts is not None and found.facts.fault is not None:
        return f"{order.uri} has revision {found.revision}, which no replica can serve: {found.facts.fault}"
    size = "" if found.num_bytes is None else f", {show_bytes(found.num_bytes)}"
    return f"{order.uri} has revision {found.revision}: {found.num_files} files{size}"


def run(order: Order, progress_port: int | None = None) -> Outcome:
    """Fetch a model. The progress goes to stderr, and to a port if one is given."""
    source = open_source(order)
    with _show() as shown, Alarm(shown, order.folder) as watch:
        fetching = (
            fetch(order, source, watch)
            if progress_port is None
            else _fetch_and_report(order, source, watch, progress_port)
        )
        return asyncio.run(_run_until_sigterm(fetching))


def _show() -> AbstractContextManager[Watch]:
    if not sys.stderr.isatty():
        return Lines(sys.stderr)
    from millrace_fetch.cli.terminal_bar import Bar  # noqa: PLC0415

    return Bar(sys.stderr)


async def _fetch_and_report(order: Order, source: Source, watch: Watch, port: int) -> Outcome:
    """Fetch, with the progress at a port. The fetch continues without it if the port is taken."""
    tally = Tally(watch)
    async with AsyncExitStack() as exits:
        try:
            await exits.enter_async_context(serving(tally, read_bind_address(os.environ), port))
        except OSError as error:
            tally.say(f"no progress at port {port}: {error.strerror}")
        return await fetch(order, source, tally)


async def _run_until_sigterm(fetching: Coroutine[None, None, Result]) -> Result:
    """Stop at SIGTERM too: process 1 of a container ignores the signal unless it has a handler."""
    task = asyncio.ensure_future(fetching)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _end(reason: str) -> None:
    sys.stderr.write(f"millrace fetch: {reason}\n")
    sys.stderr.flush()
    os._exit(EXIT_STUCK)


class Alarm:
    """Passes on a fetch's progress, and ends the process after too long without any."""

    def __init__(self, watch: Watch, folder: object, end: Callable[[str], None] = _end) -> None:
        self._watch = watch
        self._folder = folder
        self._end = end
        self._waited_seconds = 0.0
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _run(self) -> None:
        # Counts ticks and reads no clock: the time in which a process is stopped (SIGSTOP) does not count.
        while not self._is_over.wait(TICK_SECONDS):
            self._waited_seconds += TICK_SECONDS
            if self._waited_seconds >= LIMIT_SECONDS:
                self._end(
                    f"no progress for {LIMIT_SECONDS / 60:g} minutes: either the disk of {self._folder} does "
                    "not answer: repair the volume; or another millrace fetch holds the folder: if its log "
                    "shows no progress, delete its pod"
                )
                return

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Reset the time without progress, and pass it on."""
        self._waited_seconds = 0.0
        self._watch.begin(total_bytes, done_bytes)

    def advance(self, num_bytes: int) -> None:
        """Reset the time without progress, and pass the bytes on."""
        self._waited_seconds = 0.0
        self._watch.advance(num_bytes)

    def say(self, text: str) -> None:
        """Reset the time without progress, and pass the text on: it may announce a long Retry-After."""
        self._waited_seconds = 0.0
        self._watch.say(text)
