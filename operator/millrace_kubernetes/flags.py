"""Flags of several commands: `--namespaces`, and `--short-name`, which gives a model name to a service."""

import argparse
import re
from typing import NamedTuple

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ADDRESS = re.compile(rf"{_NAME.pattern}/{_NAME.pattern}")
NAMESPACES_HELP = "the only namespaces to serve, such as shop,search; empty: all"


def parse_namespaces(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas, each once. Raises ArgumentTypeError for a bad name."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if not _NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{name!r} names no namespace; write for example shop,search")
    return names


class ShortName(NamedTuple):
    """A model name, and the service that it leads to."""

    name: str
    namespace: str
    service: str


def add_short_name_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--short-name`, which gives a list of ShortName as `short_name`."""
    parser.add_argument(
        "--short-name",
        type=parse_short_name,
        action="append",
        default=[],
        metavar="NAME=NAMESPACE/SERVICE",
        help="give a model name to this service, even if others claim it; may be repeated",
    )


def parse_short_name(text: str) -> ShortName:
    """Return the parts of `<name>=<namespace>/<service>`. Raises ArgumentTypeError for another form."""
    name, _, address = text.rpartition("=")
    if not name or not _ADDRESS.fullmatch(address):
        raise argparse.ArgumentTypeError(
            f"{text!r} gives no model name to a service; write for example chat=team-a/chat"
        )
    return ShortName(name, *address.split("/"))
