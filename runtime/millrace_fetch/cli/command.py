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
from millrace_fetch.store.folder import find_whole
from millrace_fetch.store.marker import Marker
from millrace_fit.units import show_bytes
from millrace_runtime.listener import parse_port

VARIABLES = ("SSL_CERT_FILE", "AWS_CA_BUNDLE")
"""Libraries trust the file in the first one instead of the system's; botocore uses the second one."""
_OF_SYSTEMS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""In Debian, Fedora and Alpine: Python does not know all of these paths."""

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2
EXIT_FINAL = 3
"""A retry fails in the same way until a person changes something, so the operator does not restart such a
pod."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
MAX_CONNECTIONS = 64


def main(argv: list[str]) -> int:
    """Fetch or resolve a model. Returns 0 for success, else a status that says whether a retry may help.

    A failure writes one line to stderr: the cause, and what to do.
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
        return _fail("stopped; the next run continues from here", status)
    sys.stdout.write(f"{said}\n")
    return 0


def obey(flags: argparse.Namespace) -> str:
    """Do what the flags ask for, and return the line for stdout. Raises FetchError."""
    folder = None if flags.resolve is None else find_folder(flags)
    if folder is not None:
        from millrace_fetch.cli.local_model import resolve_folder  # noqa: PLC0415  a fetch parses no models

        return resolve_folder(folder, flags.resolve)
    order = read_order(flags)
    with trusting(flags.ca_file):
        return fetch_or_resolve(order, flags)


def find_folder(flags: argparse.Namespace) -> Path | None:
    """Return the local folder that the URI names; None for any other URI. Raises UsageError."""
    if not flags.uri.startswith(LOCAL):
        return None
    folder = Path(flags.uri.removeprefix(LOCAL))
    if not folder.is_absolute():
        raise UsageError(f"'{flags.uri}' names no folder of this machine: write {LOCAL}/folder")
    if flags.revision is not None:
        raise UsageError("a folder of this machine has no revisions: leave --revision out")
    return folder


def read_order(flags: argparse.Namespace) -> Order:
    """Return the order that the flags describe. Raises UsageError."""
    order = Order(
        parse_uri(flags.uri),
        flags.to or Path(),
        flags.connections,
        flags.revision,
        is_synced=not flags.no_sync,
    )
    return pin(order)


def fetch_or_resolve(order: Order, flags: argparse.Namespace) -> str:
    """Fetch or resolve a model, and return the line for stdout. Raises FetchError."""
    is_look = flags.resolve is not None
    marker = None if is_look else find_whole(order)
    if marker is not None:
        return describe(order, marker, has_fetched=False)
    try:  # only here: a pod that finds its model on the node does not need these libraries
        from millrace_fetch.cli.runner import resolve_remote, run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; write: pip install 'millrace[fetch]'") from error
    if is_look:
        return resolve_remote(order, flags.resolve)
    outcome = run(order, flags.progress_port)
    return describe(order, outcome.marker, has_fetched=outcome.has_fetched)


def describe(order: Order, marker: Marker, *, has_fetched: bool) -> str:
    """Return the line for stdout at the end of a fetch."""
    what = f"{len(marker.files)} files, {show_bytes(marker.num_bytes)}, revision {marker.revision}"
    if has_fetched:
        return f"fetched {order.uri} into {order.folder}: {what}"
    return f"{order.folder} has {order.uri} already: {what}"


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millrace fetch",
        description="Fetch a model's files into a folder. After an interruption the next run continues.",
    )
    where = f"where the model is: {WRITABLE}; with --resolve also {LOCAL}/folder"
    parser.add_argument("uri", metavar="URI", help=where)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", type=Path, metavar="DIR", help="the folder to fetch into")
    what.add_argument(
        "--resolve",
        type=Path,
        metavar="FILE",
        help="fetch nothing; write the present revision, its size and its headers' facts to FILE as JSON",
    )
    parser.add_argument(
        "--revision",
        metavar="REVISION",
        help="fetch this revision, as --resolve wrote it, and fail if it is gone (default: the present one)",
    )
    parser.add_argument(
        "--connections",
        type=_parse_connections,
        default=Order.connections,
        help=f"parallel connections, at most {MAX_CONNECTIONS} (default: %(default)s)",
    )
    parser.add_argument(
        "--progress-port",
        type=parse_port,
        metavar="PORT",
        help="report the progress over HTTP at this port (default: nowhere)",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="also trust the certificate authorities in this PEM file; a file that does not exist is ignored",
    )
    parser.add_argument(
        "--no-sync",
        action="store_true",
        help="do not wait for the disk (no fsync); after a reboot the files are fetched again",
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
    """Also trust the authorities in this PEM file while entered; a missing file changes nothing.

    Raises SourceError if it has no certificates.
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
    except OSError as error:  # OpenSSL raises it for unreadable certificates
        raise SourceError(
            f"{path} has no certificates: put your authority's there as PEM, which begins with "
            "-----BEGIN CERTIFICATE-----"
        ) from error


def _read_system() -> str:
    """Return the already trusted authorities; empty if none is found."""
    named = [place for name in VARIABLES if (place := os.environ.get(name)) and Path(place).is_file()]
    own = ssl.get_default_verify_paths().cafile
    known = [place for place in (own, *_OF_SYSTEMS) if place and Path(place).is_file()]
    places = named or known[:1]
    return "\n".join(Path(place).read_text(encoding="utf-8", errors="replace") for place in places)
