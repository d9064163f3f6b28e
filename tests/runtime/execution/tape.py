"""Records launches as a CUDA graph does, without a GPU.

What ran once runs again on the very same memory with the very same numbers from the host: so what was not
written to the graph's buffers on the device is not seen by a repetition. Both torch's operations and Triton's
launches (in its interpreter) are recorded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from millrace_runtime.execution.graphs import Repeat

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
