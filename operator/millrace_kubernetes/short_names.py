"""The flag by which the platform gives a model name to a service; gateway and operator have it."""

import argparse
import re
from typing import NamedTuple

_ADDRESS = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ShortName(NamedTuple):
    """A model name, and the service that it leads to."""

    name: str
    namespace: str
    service: str


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag, which gives a list of ShortName as `short_name`."""
    parser.add_argument(
        "--short-name",
        type=parse_short_name,
        action="append",
        default=[],
        metavar="NAME=NAMESPACE/SERVICE",
        help="give a model name to this service, whoever claims it; may be repeated",
    )


def parse_short_name(text: str) -> ShortName:
    """Read `<name>=<namespace>/<service>`. Raises ArgumentTypeError for what is of another form."""
    name, _, address = text.rpartition("=")
    if not name or not _ADDRESS.fullmatch(address):
        raise argparse.ArgumentTypeError(
            f"{text!r} gives no model name to a service; write for example chat=team-a/chat"
        )
    return ShortName(name, *address.split("/"))
