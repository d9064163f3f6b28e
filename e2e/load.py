"""Requests that go on beside a test for as long as it needs them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.service import Service
from e2e.traffic import Load, Phase

MAX_SECONDS = 600.0
NUM_ASKED_AGAIN = 8


@contextmanager
def load_beside(service: Service, rate: float, max_tokens: int = 24) -> Iterator[Load]:
    """Send `rate` requests a second from another thread until the block ends; all have ended after it."""
    load = Load(service.target(max_tokens=max_tokens))
    thread = threading.Thread(target=lambda: asyncio.run(load.run([Phase(MAX_SECONDS, rate)])))
    thread.start()
    try:
        yield load
        assert thread.is_alive(), f"the load ended after {MAX_SECONDS:.0f} s, before the test"
    finally:
        load.end()
        thread.join()


def assert_unharmed(load: Load) -> None:
    """Every stream brought all of its tokens, and some say the same when they are sent again, alone."""
    failed = [s for s in load.streams if s.is_refused or s.is_truncated]
    assert not failed, f"{len(failed)} of {len(load.streams)}: {failed[:3]}"
    assert asyncio.run(load.find_altered(NUM_ASKED_AGAIN)) == []
