"""Runs a device's jobs in order, so that the caller does not wait for them."""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def open_queue(device: torch.device) -> Executor:
    """Return an executor that runs a device's jobs, one after the other.

    On a CPU the jobs compute, so they have a thread of their own. On a GPU a job only launches kernels and
    waits for its copies to the device, which queue after the step before.
    The thread ends with the executor or the interpreter. No job waits for another, so the end never hangs.
    """
    if device.type != "cpu":
        return _Inline()
    # OpenMP has a number of threads for each calling thread: a new thread does not inherit it.
    return ThreadPoolExecutor(1, "forward", torch.set_num_threads, (torch.get_num_threads(),))


class _Inline(Executor):
    """Runs a job at once, in the thread that submits it."""

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  `collect` raises it
            future.set_exception(error)
        return future


class Stopwatch:
    """Measures the device's own time over the parts of a step."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Begin a part, or end the one that has begun."""
        self._marks.append(_cuda_mark() if self._is_cuda else _cpu_mark())

    def seconds(self) -> float:
        """Wait until the parts have run, and return the sum of their times."""
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        if self._is_cuda:
            self._marks[-1].synchronize()  # after a step that drew nothing, nothing else has waited
            return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1000
        return float(sum(end - begin for begin, end in pairs))


def _cpu_mark() -> float:
    return time.perf_counter()


def _cuda_mark() -> torch.cuda.Event:
    # A blocking event sleeps while it waits. Spinning would take a core for each device, and cores are few.
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    event.record(_find_stream())
    return event


@cache
def _find_stream() -> torch.cuda.Stream:
    """Return the stream of all steps in this process. Cached: the call takes longer than a recording."""
    return torch.cuda.current_stream()
