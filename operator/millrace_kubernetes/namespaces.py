"""Which namespaces a process may see: those of its flag `--namespaces`, or all."""

import argparse
import re

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

HELP = "the only namespaces to look after, such as shop,search; empty: all"


def parse_namespaces(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas; none for all. Raises ArgumentTypeError for what is no name."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if not _NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{name!r} names no namespace; write for example shop,search")
    return names
