"""Tries again what may work the next time, and tells of it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from millrace_fetch.errors import UnavailableError
from millrace_fetch.transfer.backoff import MAX_TRIES, plan_wait
from millrace_fetch.units import show_seconds

T = TypeVar("T")
_LONG_SECONDS = 60.0
"""A wait of which the user must hear that it is the server's wish."""


class Say(Protocol):
    """Tells the user something on a line of its own."""

    def __call__(self, text: str, quiet_seconds: float = 0.0) -> None:
        """Tell it. The source asks to be left alone for so long."""


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


def give_up(error: UnavailableError) -> UnavailableError:
    """Return the error that ends a fetch."""
    return UnavailableError(
        f"{error}, {MAX_TRIES} times in a row: run it again later, and it goes on from here"
    )


async def pause(error: UnavailableError, num_failures: int, say: Say) -> None:
    """Wait before the next try, and tell of it. Raises UnavailableError where that would be too long."""
    seconds = plan_wait(num_failures, error.retry_after_seconds, random.random())  # noqa: S311  spreads load
    asked = error.retry_after_seconds or 0.0
    quiet = f"{error}, and asks for {show_seconds(asked)} of quiet"
    if seconds is None:
        raise UnavailableError(f"{quiet}: run it again after that, and it goes on from here") from error
    if asked >= _LONG_SECONDS:
        say(f"{quiet}; waiting", quiet_seconds=asked)
    else:
        say(f"{error}; trying again in {seconds:.1f} s")
    await asyncio.sleep(seconds)
