"""Keeps the proxies of the environment out of a test run, and hands them to what goes out of this machine.

Nearly all that a test asks is at an address of this machine, which no proxy reaches.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = tuple(
    spelling
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for spelling in (name, name.upper())
)
_dropped: dict[str, str] = {}


def drop_proxies() -> None:
    """Forget the proxies of the environment, for us and for what we start."""
    _dropped.update({name: os.environ.pop(name) for name in NAMES if name in os.environ})


def outside_environment() -> dict[str, str]:
    """Return our environment with its proxies, for a process that downloads."""
    return {**os.environ, **_dropped}


@contextmanager
def going_outside() -> Iterator[None]:
    """Have the proxies back for as long as something is downloaded."""
    os.environ.update(_dropped)
    try:
        yield
    finally:
        drop_proxies()
