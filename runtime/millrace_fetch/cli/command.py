"""`millrace fetch`: reads the flags, fetches a model into a folder, returns an exit status."""

import argparse
import asyncio
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millrace_fetch.errors import FetchError, SourceError, UsageError
from millrace_fetch.plan.uri import LOCAL, WRITABLE, Order, parse_uri, pin
from millrace_fetch.progress import show_bytes
from millrace_fetch.store.folder import find_whole
from millrace_fetch.store.marker import Marker
from millrace_runtime.listener import parse_port

VARIABLES = ("SSL_CERT_FILE", "AWS_CA_BUNDLE")
"""Libraries trust what the first one names instead of the system's, and those for S3 the second one's."""
_OF_SYSTEMS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Of Debian, Fedora and Alpine: Python does not know all of them by name."""

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


@contextmanager
def trusting(more: Path | None) -> Iterator[None]:
    """While entered, trust the authorities in this PEM file too. Where there is none, all is as before.

    Raises SourceError where it has no certificates.
    """
    if more is None or not more.exists():
        yield
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem", encoding="utf-8") as bundle:
        bundle.write(f"{_read_system()}\n{_read_authorities(more)}\n")
        bundle.flush()
        before = {name: os.environ.get(name) for name in VARIABLES}
        os.environ.update(dict.fromkeys(VARIABLES, bundle.name))
        try:
            yield
        finally:
            _restore(before)


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _read_authorities(path: Path) -> str:
    try:
        ssl.create_default_context().load_verify_locations(cafile=str(path))
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:  # what OpenSSL can't read is an OSError
        raise SourceError(
            f"{path} has no certificates to trust: put those of your authority there as PEM, "
            "which begins with -----BEGIN CERTIFICATE-----"
        ) from error


def _read_system() -> str:
    """Return those that are trusted anyway. Where none is found, the file's alone are."""
    named = [place for name in VARIABLES if (place := os.environ.get(name)) and Path(place).is_file()]
    own = ssl.get_default_verify_paths().cafile
    known = [place for place in (own, *_OF_SYSTEMS) if place and Path(place).is_file()]
    places = named or known[:1]
    return "\n".join(Path(place).read_text(encoding="utf-8", errors="replace") for place in places)
