"""Waits for what sends no notice: looks again and again, and in the end says what was awaited."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1
ASYNC_PAUSE_SECONDS = 0.01  # what is awaited is mostly in this process, and looking costs nothing


def wait_until(
    what: str,
    ask: Callable[[], Answer],
    seconds: float = PATIENCE_SECONDS,
    *,
    outlives: tuple[type[Exception], ...] = (),
) -> Answer:
    """Return the first true answer. Raises AssertionError when none came in so many seconds.

    An exception named in `outlives` counts as an answer that is not true.
    """
    deadline = time.monotonic() + seconds
    while True:
        last: object
        try:
            if answer := ask():
                return answer
            last = answer
        except outlives as error:
            last = error
        if time.monotonic() > deadline:
            raise _make_failure(what, seconds, last)
        time.sleep(PAUSE_SECONDS)


async def wait_until_async(what: str, ask: Callable[[], Answer], seconds: float = PATIENCE_SECONDS) -> Answer:
    """Return the first true answer, as `wait_until` does, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise _make_failure(what, seconds, answer)
        await asyncio.sleep(ASYNC_PAUSE_SECONDS)
    return answer


def _make_failure(what: str, seconds: float, last: object) -> AssertionError:
    return AssertionError(f"not in {seconds:g} s: {what}; the last answer was {last!r:.300}")
