"""Runs a fetch, or a look at a source, until it is done or told to stop.

What only some of them need is loaded by these: a quarter of a fetch's start was for others.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import TypeVar

from millrace_fetch.cli.alarm import Alarm
from millrace_fetch.cli.progress_log import Lines
from millrace_fetch.fetch import Outcome, fetch, open_source
from millrace_fetch.plan.fetch_request import Order
from millrace_fetch.sources.source import Source
from millrace_fetch.transfer.watcher import Watch
from millrace_fetch.units import show_bytes
from millrace_runtime.listener import read_bind_address

Result = TypeVar("Result")


def ask(order: Order, path: Path) -> str:
    """Write what the source has into a file, as JSON, and return a line that says it."""
    from millrace_fetch.cli.resolve import resolve  # noqa: PLC0415

    with Lines(sys.stderr) as watch:
        found = asyncio.run(_run_until_told(resolve(order, open_source(order), watch.say)))
    found.write(path)
    if found.facts is not None and found.facts.fault is not None:
        return f"{order.uri} has revision {found.revision}, which can't be served: {found.facts.fault}"
    size = "" if found.num_bytes is None else f", {show_bytes(found.num_bytes)}"
    return f"{order.uri} has revision {found.revision}: {found.num_files} files{size}"


def run(order: Order, progress_port: int | None = None) -> Outcome:
    """Fetch, and show how far it is on stderr; at a port too, where one is given."""
    source = open_source(order)
    with _show() as shown, Alarm(shown, order.folder) as watch:
        fetching = (
            fetch(order, source, watch)
            if progress_port is None
            else _fetch_and_tell(order, source, watch, progress_port)
        )
        return asyncio.run(_run_until_told(fetching))


def _show() -> AbstractContextManager[Watch]:
    if not sys.stderr.isatty():
        return Lines(sys.stderr)
    from millrace_fetch.cli.terminal_bar import Bar  # noqa: PLC0415

    return Bar(sys.stderr)


async def _fetch_and_tell(order: Order, source: Source, watch: Watch, port: int) -> Outcome:
    """Fetch. That nobody can be told how far it is does not keep the model away."""
    from millrace_fetch.cli.progress_server import Tally, telling  # noqa: PLC0415

    tally = Tally(watch)
    async with AsyncExitStack() as exits:
        try:
            await exits.enter_async_context(telling(tally, read_bind_address(os.environ), port))
        except OSError as error:
            tally.say(f"port {port} tells no progress: {error.strerror}")
        return await fetch(order, source, tally)


async def _run_until_told(fetching: Coroutine[None, None, Result]) -> Result:
    """End at SIGTERM too: a container's first process that does not ask for it never gets it."""
    task = asyncio.ensure_future(fetching)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task
