"""How fast this machine reads memory: the bound of a decode step.

Torch sums, and takes the least of, a buffer larger than any cache, in pages of 4 KiB and in huge ones; the
fastest counts. A bound measured too low flatters us, so a C probe at $PEERS/build/bwprobe counts where it is
faster.
"""

import mmap
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

BUFFER_BYTES = 256 << 20
NUM_READS = 7


def measure_read_bandwidth(num_threads: int) -> float:
    """Return bytes read in a second, with so many threads."""
    torch.set_num_threads(num_threads)
    rates = [
        BUFFER_BYTES / _time_median(read, buffer) for buffer in _buffers() for read in (torch.sum, torch.amin)
    ]
    return max(*rates, _run_native_probe())


def _time_median(read: Callable[[Tensor], Tensor], buffer: Tensor) -> float:
    seconds = []
    for _ in range(NUM_READS):
        began = time.perf_counter()
        read(buffer)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


@cache
def _buffers() -> tuple[Tensor, Tensor]:
    return _map(mmap.MADV_NOHUGEPAGE), _map(mmap.MADV_HUGEPAGE)


def _map(advice: int) -> Tensor:
    # Private: most kernels give memory that can be shared no huge pages, whatever the advice.
    pages = mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without huge pages
        pages.madvise(advice)
    return torch.frombuffer(pages, dtype=torch.float32).fill_(1)


def _run_native_probe() -> float:
    """Return the C probe's rate, 0 without it. It prints GB/s with huge pages, then with small ones."""
    probe = Path(os.environ.get("PEERS", "/nonexistent")) / "build/bwprobe"
    if not probe.exists():
        return 0.0
    said = subprocess.run([str(probe)], capture_output=True, text=True, check=True, timeout=60).stdout
    return max(float(word) for word in said.split()[:2]) * 1e9
