"""`millrace fetch`: flags in, a model's folder and an exit status out."""

import argparse
import asyncio
import sys
from pathlib import Path

from millrace_fetch.errors import FetchError, UsageError
from millrace_fetch.plan.fetch_request import Order, pin
from millrace_fetch.plan.uri import LOCAL, WRITABLE, parse_uri
from millrace_fetch.store.folder import find_whole
from millrace_fetch.store.marker import Marker
from millrace_fetch.transfer.authorities import trusting
from millrace_fetch.units import show_bytes
from millrace_runtime.listener import parse_port

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2
EXIT_FINAL = 3
"""Until somebody changes something. A pod that ends so is not started again."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
MAX_CONNECTIONS = 64


def main(argv: list[str]) -> int:
    """Fetch a model. Returns 0 when it is whole, or looked at; else a status that says whether to try again.

    One line on stderr says why, and what to do.
    """
    flags = _make_parser().parse_args(argv)
    try:
        said = obey(flags)
    except UsageError as error:
        return _fail(str(error), EXIT_BAD_USAGE)
    except FetchError as error:
        return _fail(str(error), EXIT_FINAL if error.is_final else EXIT_FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError) as stop:
        status = EXIT_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else EXIT_TERMINATED
        return _fail("stopped; the next run goes on from here", status)
    sys.stdout.write(f"{said}\n")
    return 0


def obey(flags: argparse.Namespace) -> str:
    """Do what the flags ask for, and return the line that says it. Raises FetchError."""
    folder = None if flags.resolve is None else find_folder(flags)
    if folder is not None:
        from millrace_fetch.cli.local_look import look  # noqa: PLC0415  it knows models, which a fetch need not

        return look(folder, flags.resolve)
    order = read_order(flags)
    with trusting(flags.ca_file):
        return act(order, flags)


def find_folder(flags: argparse.Namespace) -> Path | None:
    """Return the folder of this machine that the URI names; None of any other URI. Raises UsageError."""
    if not flags.uri.startswith(LOCAL):
        return None
    folder = Path(flags.uri.removeprefix(LOCAL))
    if not folder.is_absolute():
        raise UsageError(f"'{flags.uri}' names no folder of this machine: write {LOCAL}/folder")
    if flags.revision is not None:
        raise UsageError("a folder of this machine has no revisions: leave --revision out")
    return folder


def read_order(flags: argparse.Namespace) -> Order:
    """Return what the flags ask for. Raises UsageError."""
    order = Order(
        parse_uri(flags.uri),
        flags.to or Path(),
        flags.connections,
        flags.revision,
        is_synced=not flags.no_sync,
    )
    return pin(order)


def act(order: Order, flags: argparse.Namespace) -> str:
    """Fetch, or ask the source, and return the line that says it. Raises FetchError."""
    is_look = flags.resolve is not None
    marker = None if is_look else find_whole(order)
    if marker is not None:
        return describe(order, marker, has_fetched=False)
    try:  # only now: a pod that finds its model on the node has no use for these libraries
        from millrace_fetch.cli.runner import ask, run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; write: pip install 'millrace[fetch]'") from error
    if is_look:
        return ask(order, flags.resolve)
    outcome = run(order, flags.progress_port)
    return describe(order, outcome.marker, has_fetched=outcome.has_fetched)


def describe(order: Order, marker: Marker, *, has_fetched: bool) -> str:
    """Return the line that a fetch ends with."""
    what = f"{len(marker.files)} files, {show_bytes(marker.num_bytes)}, revision {marker.revision}"
    if has_fetched:
        return f"{order.folder} has {order.uri} now: {what}"
    return f"{order.folder} has {order.uri} already: {what}"


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millrace fetch",
        description="Fetch a model's files into a folder. Run again after a break, it goes on from there.",
    )
    where = f"where the model is: {WRITABLE}; with --resolve also {LOCAL}/folder"
    parser.add_argument("uri", metavar="URI", help=where)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", type=Path, metavar="DIR", help="the folder to fetch into")
    what.add_argument(
        "--resolve",
        type=Path,
        metavar="FILE",
        help="fetch nothing; write the revision that is there now, its size and what headers tell to FILE as "
        "JSON",
    )
    parser.add_argument(
        "--revision",
        metavar="REVISION",
        help="fetch this one, as --resolve named it, and fail where it is gone (default: what is there now)",
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
        "--no-sync",
        action="store_true",
        help="do not wait for the disk; what comes counts until this machine starts again",
    )
    return parser


def _parse_connections(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MAX_CONNECTIONS:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 to {MAX_CONNECTIONS}")


def _fail(reason: str, status: int) -> int:
    sys.stderr.write(f"millrace fetch: {reason}\n")
    return status
