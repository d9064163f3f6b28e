"""`millrace fetch`: flags in, a model's folder and an exit status out."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from millrace_fetch.authorities import trusting
from millrace_fetch.errors import FetchError, FolderError, UsageError
from millrace_fetch.fetching import Order, Outcome, fetch, open_source, pin
from millrace_fetch.progress import Bar, Lines, show_bytes
from millrace_fetch.resolving import resolve
from millrace_fetch.sources.source import Source
from millrace_fetch.telling import Tally, telling
from millrace_fetch.uri import WRITABLE, parse_uri
from millrace_runtime.listener import parse_port, read_bind_address

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2
EXIT_FINAL = 3
"""Until somebody changes something. A pod that ends so is not started again."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
MAX_CONNECTIONS = 64
Result = TypeVar("Result")


def main(argv: list[str]) -> int:
    """Fetch a model. Returns 0 when it is whole, else a status that says whether to try again.

    One line on stderr says why, and what to do.
    """
    flags = _make_parser().parse_args(argv)
    try:
        order = read_order(flags)
        with trusting(flags.ca_file):
            said = act(order, flags)
    except UsageError as error:
        return _fail(str(error), EXIT_BAD_USAGE)
    except FetchError as error:
        return _fail(str(error), EXIT_FINAL if error.is_final else EXIT_FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError) as stop:
        status = EXIT_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else EXIT_TERMINATED
        return _fail("stopped; run it again, and it goes on from here", status)
    sys.stdout.write(f"{said}\n")
    return 0


def read_order(flags: argparse.Namespace) -> Order:
    """Return what the flags ask for. Raises UsageError."""
    order = Order(
        parse_uri(flags.uri),
        flags.to or Path(),
        tuple(flags.include),
        flags.connections,
        flags.verify,
        flags.revision,
    )
    return pin(order)


def act(order: Order, flags: argparse.Namespace) -> str:
    """Do what the flags ask for, and return the line that says it. Raises FetchError."""
    if flags.resolve is not None:
        return ask(order, flags.resolve)
    return describe(order, run(order, flags.progress_port))


def ask(order: Order, path: Path) -> str:
    """Write what the source has into a file, as JSON, and return a line that says it."""
    with Lines(sys.stderr) as watch:
        found = asyncio.run(_run_until_told(resolve(order, open_source(order), watch.say)))
    try:
        path.write_text(found.render())
    except OSError as error:
        raise FolderError(f"{path} can't be written: {error.strerror}") from error
    size = "" if found.num_bytes is None else f", {show_bytes(found.num_bytes)}"
    return f"{order.uri} has revision {found.revision}: {found.num_files} files{size}"


def run(order: Order, progress_port: int | None = None) -> Outcome:
    """Fetch, and show how far it is on stderr; at a port too, where one is given."""
    source = open_source(order)
    with Bar(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr) as watch:
        fetching = (
            fetch(order, source, watch)
            if progress_port is None
            else _fetch_and_tell(order, source, Tally(watch), progress_port)
        )
        return asyncio.run(_run_until_told(fetching))


async def _fetch_and_tell(order: Order, source: Source, tally: Tally, port: int) -> Outcome:
    """Fetch. That nobody can be told how far it is does not keep the model away."""
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


def describe(order: Order, outcome: Outcome) -> str:
    """Return the line that a fetch ends with."""
    marker = outcome.marker
    what = f"{len(marker.files)} files, {show_bytes(marker.num_bytes)}, revision {marker.revision}"
    if outcome.has_fetched:
        return f"{order.folder} has {order.uri} now: {what}"
    verified = ", hashed again" if order.verify else ""
    return f"{order.folder} has {order.uri} already: {what}{verified}"


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millrace fetch",
        description="Fetch a model's files into a folder. Run again after a break, it goes on from there.",
    )
    parser.add_argument("uri", metavar="URI", help=f"where the model is: {WRITABLE}")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", type=Path, metavar="DIR", help="the folder to fetch into")
    what.add_argument(
        "--resolve",
        type=Path,
        metavar="FILE",
        help="fetch nothing; write the revision that is there now, and its size, to FILE as JSON",
    )
    parser.add_argument(
        "--revision",
        metavar="REVISION",
        help="fetch this one, as --resolve named it, and fail where it is gone (default: what is there now)",
    )
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="more files than those that a replica reads, such as 'LICENSE*'; may be repeated",
    )
    parser.add_argument(
        "--connections",
        type=_parse_connections,
        default=Order.connections,
        help=f"connections at the same time, at most {MAX_CONNECTIONS} (default: %(default)s)",
    )
    parser.add_argument(
        "--progress-port",
        type=parse_port,
        metavar="PORT",
        help="tell over HTTP how far it is, at this port (default: nowhere)",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="trust the certificate authorities in this PEM file too; nothing where it does not exist",
    )
    parser.add_argument(
        "--verify", action="store_true", help="hash the files that are there already, and fetch bad ones anew"
    )
    return parser


def _parse_connections(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MAX_CONNECTIONS:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 to {MAX_CONNECTIONS}")


def _fail(reason: str, status: int) -> int:
    sys.stderr.write(f"millrace fetch: {reason}\n")
    return status
