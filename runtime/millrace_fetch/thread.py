"""Waits for a library that blocks, and not beyond the end of the process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def call_in_thread(call: Callable[[], T]) -> T:
    """Return what a blocking call returns.

    The thread is a daemon. asyncio.to_thread's are waited for at the end, which SIGTERM should not be.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from now on it can't be cancelled, only left behind

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  whatever it is, the caller gets it
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)
