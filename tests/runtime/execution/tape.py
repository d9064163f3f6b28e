"""Records launches as a CUDA graph does, without a GPU.

A repetition runs the same launches on the very same memory, with the very same numbers from the host. So it
does not see values that were not written to the graph's buffers on the device. Both torch's operations and
Triton's launches (in its interpreter) are recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.graphs import Repeat
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.protocol.step import StepSize

Launch = Callable[[], None]


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        assert not name.startswith(("aten._local_scalar_dense", "aten.nonzero")), (
            f"{name} waits for the device"
        )
        output = func(*args, **kwargs)
        self.launches.append(lambda: _repeat(func, args, kwargs, output))
        return output


def _repeat(func: Any, args: Any, kwargs: Any, output: Any) -> None:
    again = func(*args, **kwargs)
    for old, new in zip(_tensors(output), _tensors(again), strict=True):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [one for one in output if isinstance(one, Tensor)] if isinstance(output, (tuple, list)) else []


def record(compute: Callable[[], None]) -> Repeat:
    """Record what a function computes."""
    tape = _Tape()
    launch_once = GridExecutor.__call__

    def launch(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            launch_once(executor, *args, **kwargs)
        tape.launches.append(lambda: launch_once(executor, *args, **kwargs))

    GridExecutor.__call__ = launch
    try:
        with tape:
            compute()
    finally:
        GridExecutor.__call__ = launch_once

    def repeat() -> None:
        with torch.inference_mode():
            for one in tape.launches:
                one()

    return repeat


class CountingRecorder:
    """Counts the repetitions of a recording."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings` are those of its executors."""
        self._settings = settings
        self.num_recorded = self.num_repeated = self.num_forgotten = 0
        self.error: Exception | None = None

    def open(self, path: Path, *sizes: int, mixed: Sequence[int] = ()) -> LocalExecutor:
        """Return an executor that can record steps of such sizes."""
        executor = build_executor(ExecutionSettings(path, kernels="torch", **self._settings))
        recordable = (*map(StepSize, sizes), *(StepSize(size, is_mixed=True) for size in mixed))
        executor.limits = msgspec.structs.replace(executor.limits, recordable=recordable)
        return executor

    def forget(self) -> None:
        self.num_forgotten += 1

    def __call__(self, compute: Callable[[], None]) -> Repeat:
        if self.error is not None:
            raise self.error
        compute()  # as CUDA's does, so that all kernels are compiled
        self.num_recorded += 1
        repeat = record(compute)

        def count() -> None:
            self.num_repeated += 1
            repeat()

        return count


def prompt(length: int, seed: int) -> list[int]:
    """Return random tokens of a tiny model."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 199, (length,), generator=generator).tolist()
