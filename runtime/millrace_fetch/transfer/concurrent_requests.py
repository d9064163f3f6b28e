"""Requests made at the same time: the first that fails ends the others, and is the one that is told."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from millrace_fetch.errors import FetchError

T = TypeVar("T")


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return their results in order, or raise the error that the user should read.

    Nothing goes on after that. asyncio.gather leaves the others running, on connections that are closed then.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in coroutines]
    except ExceptionGroup as error:
        raise find_first(error) from error
    return [task.result() for task in tasks]


def find_first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that the user should read: ours, where there is one."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, FetchError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
