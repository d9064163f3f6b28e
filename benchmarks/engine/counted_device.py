"""A GPU that only counts what it is asked for: the executor's path for GPUs, over tensors of the CPU.

What the host computes is the product's own code. What would go to a driver is replaced here: copies, replays
of graphs, Triton's launches, events and waits. So the device takes no time, and neither does a call of its
driver. Tokens are meaningless: all are 0.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from millrace_kernels import transfer
from millrace_kernels.device_kernels import select_triton
from millrace_kernels.transfer import TableWriter
from millrace_runtime.execution import graphs, local, model_runner, sampler, slots
from millrace_runtime.execution.device_queue import Stopwatch, open_queue
from millrace_runtime.execution.graphs import Repeat

GPU = torch.device("cuda")


class CountedDevice:
    """Counts by kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def upload(self, values: NDArray[Any], _: torch.device) -> Tensor:
        """Return a copy of the values."""
        self.counts["copies"] += 1
        return torch.from_numpy(np.array(values))

    def upload_into(self, values: NDArray[Any], target: Tensor) -> None:
        """Copy values to a tensor of their shape and type."""
        self.counts["copies"] += 1
        target.numpy()[...] = values

    def download(self, values: Tensor) -> Tensor:
        """Return a copy of the values."""
        self.counts["copies"] += 1
        return torch.from_numpy(values.numpy().copy())

    def __call__(self, compute: Callable[[], None]) -> Repeat:
        """Compute once, as a recording does. A replay then costs the host no more than its count."""
        compute()
        return self._replay

    def forget(self) -> None:
        """Nothing is shared."""

    def _replay(self) -> None:
        self.counts["replays"] += 1

    def _launch(self, *_: Any, **__: Any) -> None:
        self.counts["Triton launches"] += 1

    @contextmanager
    def stand_in(self) -> Iterator[None]:
        """Stand in for a GPU meanwhile, for executors that are made and used within."""
        counts = self.counts

        class CountedStopwatch(Stopwatch):
            def mark(self) -> None:
                counts["events"] += 1
                super().mark()

            def seconds(self) -> float:
                counts["waits"] += 1
                return super().seconds()

        with (
            patch.multiple(transfer, upload=self.upload),
            patch.multiple(graphs, upload_into=self.upload_into),
            patch.multiple(sampler, download=self.download),
            patch.multiple(slots, TableWriter=_GpuTableWriter),
            patch.multiple(local, open_queue=lambda _: open_queue(GPU), Stopwatch=CountedStopwatch),
            patch.object(GridExecutor, "__call__", self._launch),
            patch.multiple(model_runner, select_kernels=lambda _: select_triton(), MIN_GEMM_ROWS=0),
        ):
            yield

    @contextmanager
    def counting_launches(self) -> Iterator[None]:
        """Count torch's operations meanwhile, too. It takes time, so nothing is timed within."""
        with _Launches(self.counts):
            yield


class _GpuTableWriter(TableWriter):
    """Collects what it writes, as for a table on a GPU."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(table)
        self._device = GPU


class _Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations on tensors: a view launches nothing."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._counts["launches"] += not func.is_view
        return func(*args, **(kwargs or {}))
