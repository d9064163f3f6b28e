"""The memory that the workers of one machine share on the native path."""

import mmap
import os

import torch

LINE = 64
"""Bytes of a worker's counter: a cache line of its own."""


class Exchange:
    """One worker's view of a file without a name, which whoever starts the workers has made."""

    def __init__(self, fd: int, index: int, count: int) -> None:
        """`fd` is the same file for all `count` workers; this is the one numbered `index`."""
        self.index, self.count, self.worker_bytes = index, count, 0
        self._fd = fd
        self._memory = torch.empty(0, dtype=torch.uint8)

    def open(self, num_bytes: int) -> None:
        """Give each worker so much memory, which must be the same for every one."""
        self.worker_bytes = _whole_pages(num_bytes)
        size = self._counter_bytes + self.count * self.worker_bytes
        os.ftruncate(self._fd, size)  # zeros; whoever comes second changes nothing
        self._memory = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)

    @property
    def arrivals(self) -> int:
        """The address of the workers' counters, a line each."""
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
