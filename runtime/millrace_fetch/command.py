"""`millrace fetch`: flags in, a model's folder and an exit status out."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

from millrace_fetch.errors import FetchError, UsageError
from millrace_fetch.fetching import Order, Outcome, fetch, open_source
from millrace_fetch.progress import Bar, Lines, show_bytes
from millrace_fetch.uri import WRITABLE, parse_uri

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2
EXIT_FINAL = 3
"""Until somebody changes something. A pod that ends so is not started again."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
MAX_CONNECTIONS = 64


def main(argv: list[str]) -> int:
    """Fetch a model. Returns 0 when it is whole, else a status that says whether to try again.

    One line on stderr says why, and what to do.
    """
    flags = _make_parser().parse_args(argv)
    try:
        order = read_order(flags)
        outcome = run(order)
    except UsageError as error:
        return _fail(str(error), EXIT_BAD_USAGE)
    except FetchError as error:
        return _fail(str(error), EXIT_FINAL if error.is_final else EXIT_FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError) as stop:
        status = EXIT_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else EXIT_TERMINATED
        return _fail("stopped; run it again, and it goes on from here", status)
    sys.stdout.write(f"{describe(order, outcome)}\n")
    return 0


def read_order(flags: argparse.Namespace) -> Order:
    """Return what the flags ask for. Raises UsageError."""
    return Order(parse_uri(flags.uri), flags.to, tuple(flags.include), flags.connections, flags.verify)


def run(order: Order) -> Outcome:
    """Fetch, and show how far it is on stderr."""
    source = open_source(order)
    with Bar(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr) as watch:
        return asyncio.run(_run_until_told(fetch(order, source, watch)))


async def _run_until_told(fetching: Coroutine[None, None, Outcome]) -> Outcome:
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
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to fetch into")
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
