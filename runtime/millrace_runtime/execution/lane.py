"""Where a device's work is done: in order, without the caller's waiting for it."""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def open_lane(device: torch.device) -> Executor:
    """Return what runs a device's jobs, one after the other.

    On a CPU a job is the computing itself, so it has a thread of its own. On a GPU a job launches it, and
    waits for what it copies to the device, behind the step before.
    The thread ends with the executor or the interpreter, and no job waits for anyone, so neither hangs.
    """
    if device.type != "cpu":
        return _Inline()
    # OpenMP counts threads for each thread that calls it: one that starts later need not know the number.
    return ThreadPoolExecutor(1, "forward", torch.set_num_threads, (torch.get_num_threads(),))


class _Inline(Executor):
    """Runs a job where it is submitted."""

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  `collect` raises it
            future.set_exception(error)
        return future


class Progress:
    """A number that grows while a step is computed: once a layer."""

    def __init__(self) -> None:
        self.count = 0

    def advance(self) -> None:
        """Tell that a step came forward."""
        self.count += 1


class Stopwatch:
    """Measures the device's own time over the parts of a step."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Begin a part, or end it."""
        self._marks.append(_cuda_mark() if self._is_cuda else _cpu_mark())

    def seconds(self) -> float:
        """Return the sum of the parts, having waited until they have run."""
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        if self._is_cuda:
            self._marks[-1].synchronize()  # of a step that drew nothing, nothing else was waited for
            return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1000
        return float(sum(end - begin for begin, end in pairs))


def _cpu_mark() -> float:
    return time.perf_counter()


def _cuda_mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
