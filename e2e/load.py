"""Requests that go on beside a test for as long as it needs them."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from e2e.service import Service
from testing.traffic import Load, Phase

MAX_SECONDS = 600.0
LONG_TOKENS = 600
"""Of a stream that takes seconds."""
NUM_LONG = 1
"""Of them at a time. More keep several replicas busy, and then another one takes long to start."""
NUM_AT_TWO = 6
"""Of them, so that both of two replicas have some: a busy machine makes them slow, and makes no queue."""
NUM_ASKED_AGAIN = 8


@contextmanager
def load_beside(
    service: Service, rate: float, max_tokens: int = 24, *, seconds: float = MAX_SECONDS
) -> Iterator[Load]:
    """Send `rate` requests a second from another thread until the block ends; all have ended after it."""
    load = Load(service.target(max_tokens=max_tokens))
    with _run_beside(load, load.run([Phase(seconds, rate)])):
        yield load


@contextmanager
def long_streams_beside(
    service: Service, num_clients: int = NUM_LONG, *, seconds: float = MAX_SECONDS
) -> Iterator[Load]:
    """Keep so many streams of LONG_TOKENS under way until the block ends; all have ended after it."""
    load = Load(service.target(max_tokens=LONG_TOKENS))
    with _run_beside(load, load.run_in_turn(num_clients, seconds)):
        yield load


@contextmanager
def _run_beside(load: Load, work: Coroutine[Any, Any, object]) -> Iterator[None]:
    thread = threading.Thread(target=lambda: asyncio.run(work))
    thread.start()
    try:
        yield
        assert thread.is_alive(), "the load ended by itself, before the test"
    finally:
        load.end()
        thread.join()


def assert_unharmed(load: Load, *others: Load) -> None:
    """Every stream brought all of its tokens, and some of the first load's say the same when sent alone."""
    for one in (load, *others):
        failed = [s for s in one.streams if s.is_refused or s.is_truncated]
        assert not failed, f"{len(failed)} of {len(one.streams)}: {failed[:3]}"
    assert asyncio.run(load.find_altered(NUM_ASKED_AGAIN)) == []
