"""What a registry asks for in WWW-Authenticate. Pure."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class Challenge(NamedTuple):
    """A way to show who we are."""

    scheme: str
    """In small letters: `bearer` or `basic`."""
    parameters: dict[str, str]


def read_challenge(headers: Iterable[str]) -> Challenge | None:
    """Return the first challenge that can be answered, of all that a response has."""
    for header in headers:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() in ("bearer", "basic"):
            return Challenge(scheme.lower(), dict(_PARAMETER.findall(rest)))
    return None
