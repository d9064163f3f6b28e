"""Retries calls that may succeed later, with exponential backoff, and reports each wait."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace_fetch.errors import UnavailableError
from millrace_fetch.progress import Say
from millrace_fit.units import show_seconds

T = TypeVar("T")
_LONG_SECONDS = 60.0
"""Of a longer wait the user must see that the server asked for it."""

_AGAIN = (408, 425, 429)
_NEVER = (501, 505)
"""Of 500 and more: the server will never do it, such as HEAD."""
MAX_TRIES = 6
"""Attempts in a row without progress."""
_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 3600.0
"""Enough for a rate limit per hour. A pod that ended instead would ask again within minutes."""


def is_busy(status: int) -> bool:
    """Whether a server that answers with this HTTP status may serve the request later."""
    return status in _AGAIN or (status >= 500 and status not in _NEVER)


def plan_wait(num_failures: int, retry_after_seconds: float | None, draw: float) -> float | None:
    """Return the seconds to wait after `num_failures` in a row (1 or more). `draw` is random in [0, 1).

    Exponential backoff, with jitter over its upper half, so that many pods do not retry at once. The wait is
    never shorter than Retry-After. None if Retry-After is longer than the longest wait.
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
    """Return the error that ends a fetch. `is_kept`: the next run need not fetch these bytes again."""
    place = "from here" if is_kept else "from the beginning, because the server sends files only whole"
    return UnavailableError(f"{error}, {MAX_TRIES} times in a row; the next run continues {place}")


async def pause(error: UnavailableError, num_failures: int, say: Say) -> None:
    """Wait before the next attempt, and report it. Raises UnavailableError if the wait would be too long."""
    seconds = plan_wait(num_failures, error.retry_after_seconds, random.random())  # noqa: S311  spreads load
    asked = error.retry_after_seconds or 0.0
    request = f"{error}, and asks to retry after {show_seconds(asked)}"
    if seconds is None:
        raise UnavailableError(f"{request}; a later run continues from here") from error
    if asked >= _LONG_SECONDS:
        say(f"{request}; waiting")
    else:
        say(f"{error}; retrying in {seconds:.1f} s")
    await asyncio.sleep(seconds)
