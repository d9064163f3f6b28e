"""Requests at the same time: what one that fails leaves of the others."""

import asyncio

import pytest

from millrace_fetch.errors import SourceError
from millrace_fetch.transfer.concurrency import run_together


async def wait_and_return(number: int) -> int:
    await asyncio.sleep(0.001 * (3 - number))
    return number


async def test_results_come_in_the_order_of_the_requests() -> None:
    assert await run_together(wait_and_return(number) for number in range(3)) == [0, 1, 2]
    assert await run_together([]) == []


async def test_the_first_that_fails_is_told_alone_and_ends_the_others() -> None:
    ended = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise SourceError("damaged")

    with pytest.raises(SourceError, match="damaged"):
        await run_together([wait_for_ever(), fail(), wait_for_ever()])
    assert ended == [True, True]
