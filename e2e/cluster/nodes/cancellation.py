"""Ends tasks, whatever loses their cancellation."""

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_SECONDS = 1.0


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended, however they end. Who is cancelled meanwhile ends afterwards.

    A cancellation can be lost to what ends at the same moment, such as an answer or a timeout, and a task
    group passes on no second one: a node once waited for a pod's end for ever.
    """
    pending = {task for task in tasks if not task.done()}
    is_cancelled = False
    while pending:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
        except asyncio.CancelledError:
            is_cancelled = True
        pending = {task for task in pending if not task.done()}
    if is_cancelled:
        raise asyncio.CancelledError
