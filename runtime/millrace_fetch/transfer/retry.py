"""Retries calls that may succeed later, with exponential backoff, and reports each wait."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace_fetch.errors import UnavailableError
from millrace_fetch.progress import Say, show_seconds

T = TypeVar("T")
_LONG_SECONDS = 60.0
"""A wait of which the user must hear that it is the server's wish."""

MAX_TRIES = 6
"""In a row without progress."""
_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 3600.0
"""What a limit per hour asks for. A pod that ended instead would ask again within minutes."""


def plan_wait(num_failures: int, retry_after_seconds: float | None, draw: float) -> float | None:
    """Return seconds to wait after so many failures in a row (1 or more). `draw` is in [0, 1).

    None where the server asks for more than anybody waits.

    Doubles each time and is spread over its upper half, so that many pods don't come back at once. Never
    earlier than the server asks.
    """
    longest = min(_LONGEST_SECONDS, _FIRST_SECONDS * float(1 << (num_failures - 1)))
    wait = longest * (1 + draw) / 2
    if retry_after_seconds is None:
        return wait
    return None if retry_after_seconds > _LONGEST_ASKED_SECONDS else retry_after_seconds + wait


async def with_tries(call: Callable[[], Awaitable[T]], say: Say) -> T:
    """Call until it succeeds, at most MAX_TRIES times. Raises the last UnavailableError."""
    for num_failures in range(1, MAX_TRIES):
        try:
            return await call()
        except UnavailableError as error:
            await pause(error, num_failures, say)
    try:
        return await call()
    except UnavailableError as error:
        raise give_up(error) from error


def give_up(error: UnavailableError, *, is_kept: bool = True) -> UnavailableError:
    """Return the error that ends a fetch. `is_kept` says that what came need not come again."""
    place = "from here" if is_kept else "from the beginning, as the server gives no parts of a file"
    return UnavailableError(f"{error}, {MAX_TRIES} times in a row; the next run goes on {place}")


async def pause(error: UnavailableError, num_failures: int, say: Say) -> None:
    """Wait before the next try, and tell of it. Raises UnavailableError where that would be too long."""
    seconds = plan_wait(num_failures, error.retry_after_seconds, random.random())  # noqa: S311  spreads load
    asked = error.retry_after_seconds or 0.0
    quiet = f"{error}, and asks for {show_seconds(asked)} of quiet"
    if seconds is None:
        raise UnavailableError(f"{quiet}; the next run, after that, goes on from here") from error
    if asked >= _LONG_SECONDS:
        say(f"{quiet}; waiting")
    else:
        say(f"{error}; trying again in {seconds:.1f} s")
    await asyncio.sleep(seconds)
