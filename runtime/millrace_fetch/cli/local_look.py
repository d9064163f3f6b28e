"""Looks at a model that is in a folder of this machine already: nothing is to be fetched of it."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from millrace_fetch.errors import SourceError
from millrace_fetch.plan.head import describe_head
from millrace_fetch.plan.local_head import measure_files, read_local_head
from millrace_fetch.plan.resolved_model import Resolved
from millrace_fetch.units import show_bytes


def look(folder: Path, path: Path) -> str:
    """Write what the folder has into a file, as JSON, and return a line that says it. Raises FetchError.

    A model that lacks weights is told of as an error: somebody may be copying it just now.
    """
    with _ending_when_told():
        head = read_local_head(folder)
        facts = describe_head(head)
        if facts.shape is not None and facts.fault is not None:
            raise SourceError(f"{folder} has no whole model: {facts.fault}")
        sizes = measure_files(folder, head.names)
        found = Resolved(None, len(sizes), sum(sizes), facts)
    found.write(path)
    return f"{folder} has a model: {found.num_files} files, {show_bytes(sum(sizes))}"


@contextmanager
def _ending_when_told() -> Iterator[None]:
    """End at SIGTERM: a slow volume may keep a read, and a container's first process must ask for it."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(*_: object) -> NoReturn:
    raise asyncio.CancelledError
