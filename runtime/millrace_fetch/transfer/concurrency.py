"""Runs several requests at a time, or a blocking library in a thread."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from threading import Lock, Thread
from typing import Any, Self, TypeVar

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


class Loop:
    """The way back from such a thread: coroutines that the event loop runs for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._pending: Future[Any] | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what runs. The thread may be left behind, and asks for nothing more."""
        with self._lock:
            self._is_closed = True
            pending = self._pending
        if pending is not None:
            pending.cancel()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine returns. For the thread. Raises CancelledError once nobody waits for it."""
        with self._lock:
            if self._is_closed:
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(make(), self._loop)
            self._pending = future
        return future.result()
