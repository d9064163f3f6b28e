"""The memory that the workers of one machine share on the native path."""

import mmap
import os

import torch

LINE = 64
"""Bytes of a worker's counter: a cache line of its own."""


class Exchange:
    """One worker's view of an anonymous file, created by the process that starts the workers."""

    def __init__(self, fd: int, index: int, count: int) -> None:
        """`fd` is the same file for all `count` workers; `index` is this worker's number."""
        self.index, self.count, self.worker_bytes = index, count, 0
        self._fd = fd
        self._memory = torch.empty(0, dtype=torch.uint8)

    def open(self, num_bytes: int) -> None:
        """Map the file with `num_bytes` for each worker. All workers must give the same number."""
        self.worker_bytes = _whole_pages(num_bytes)
        size = self._counter_bytes + self.count * self.worker_bytes
        os.ftruncate(self._fd, size)  # zeros; a second call with the same size changes nothing
        self._memory = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)

    @property
    def arrivals(self) -> int:
        """The address of the workers' counters, a cache line for each."""
        return self._memory.data_ptr()

    @property
    def memory(self) -> int:
        """The address of the workers' memory, one after the other."""
        return self.arrivals + self._counter_bytes

    @property
    def _counter_bytes(self) -> int:
        return _whole_pages(self.count * LINE)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
