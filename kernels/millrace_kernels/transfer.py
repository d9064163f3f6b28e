"""Copies numbers between the host and a device, without a wait for earlier work of the device.

A copy from pageable memory to a GPU waits until the GPU has finished all earlier launches, so the last step.
Only a copy from or to pinned memory is queued behind them.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the values on the device; on a CPU the same memory."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host if device.type == "cpu" else pin(host).to(device, non_blocking=True)


def upload_all(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Return int64 [any] arrays on the device, by one copy: each copy takes as long as a small kernel.

    Each starts at a multiple of 16 bytes: Triton would compile a kernel again for unaligned memory.
    """
    sizes = [len(array) for array in arrays]
    begins = [0, *accumulate(size + size % 2 for size in sizes)]
    together = np.empty(begins[-1], dtype=np.int64)
    for array, begin, size in zip(arrays, begins, sizes, strict=False):
        together[begin : begin + size] = array
    there = upload(together, device)
    return [there[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]


def upload_into(values: NDArray[Any], target: Tensor) -> None:
    """Copy values to a tensor of their shape and type."""
    host = torch.from_numpy(values)
    target.copy_(host if target.device.type == "cpu" else pin(host), non_blocking=True)


def download(values: Tensor) -> Tensor:
    """Return host memory that receives the values once the device gets there; on a CPU the values.

    Before reading it, wait for an event that was recorded after this call.
    """
    if values.device.type == "cpu":
        return values
    return allocate_pinned(values).copy_(values, non_blocking=True)


def pin(host: Tensor) -> Tensor:
    """Return a copy in pinned memory. torch reuses that memory only after the copies from it are done."""
    return host.pin_memory()


def allocate_pinned(like: Tensor) -> Tensor:
    """Return pinned memory of this shape and type."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


class TableWriter:
    """Writes numbers into rows of a table: on a CPU at once, on a GPU with one copy for each plan."""

    def __init__(self, table: Tensor) -> None:
        """`table` [rows, columns] of integers"""
        self._table, self._device = table, table.device
        self._targets: list[NDArray[np.int64]] = []
        self._values: list[NDArray[Any]] = []

    def write(self, row: int, begin: int, values: NDArray[Any]) -> None:
        """Write numbers to a row, beginning at a column."""
        if self._device.type == "cpu":
            self._table[row, begin : begin + len(values)] = torch.from_numpy(values)
            return
        first = row * self._table.shape[1] + begin
        self._targets.append(np.arange(first, first + len(values)))
        self._values.append(values.astype(np.int64))

    def flush(self) -> None:
        """Launch the writes since the last flush. They must not overlap: their order is not kept."""
        if self._targets:
            targets, values = upload_all(
                (np.concatenate(self._targets), np.concatenate(self._values)), self._device
            )
            self._table.view(-1).index_copy_(0, targets, values.to(self._table.dtype))
            self._targets, self._values = [], []
