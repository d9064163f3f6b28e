"""Runs several requests at a time, or a blocking library in a thread."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from threading import Lock, Thread
from typing import Any, Self, TypeVar

from millrace_fetch.errors import FetchError

T = TypeVar("T")


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order, or raise the first error of ours.

    An error cancels all others. asyncio.gather would leave them running on closed connections.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in coroutines]
    except ExceptionGroup as error:
        raise find_first(error) from error
    return [task.result() for task in tasks]


def find_first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to show to the user: the first FetchError, else the first of all."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, FetchError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def call_in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a thread, and return its result.

    The thread is a daemon: the end of the process does not wait for it, as it would for asyncio.to_thread's.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from now on it can't be cancelled, only abandoned

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  the caller gets every error
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)


class Loop:
    """Runs coroutines on the event loop for such a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._pending: Future[Any] | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the running coroutine. The thread may be abandoned, and can start no other."""
        with self._lock:
            self._is_closed = True
            pending = self._pending
        if pending is not None:
            pending.cancel()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine for the thread, and return its result. Raises CancelledError after the exit."""
        with self._lock:
            if self._is_closed:
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(make(), self._loop)
            self._pending = future
        return future.result()
