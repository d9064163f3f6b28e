"""The device that the campaign measures: a CUDA device, or in a dry run a CPU that stands in for it.

Everything that only a GPU has is behind `Device`, so that a dry run executes every line of the steps.
"""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity

FLUSHED_BYTES = 256 << 20
"""More than the second-level cache of any GPU that we know: an H100's has 50 MB."""
PAUSED_CYCLES = 3_000_000
"""Of the device's clock, some 2 ms: more than the host takes for what is measured. The write takes 0.1 ms."""


class Mark(Protocol):
    """A moment on the device."""

    def seconds_until(self, later: Any) -> float:
        """Return the device's time between two moments that have passed."""


class Device(Protocol):
    """What the steps need of a device, beside its tensors."""

    torch_device: torch.device
    activities: list[ProfilerActivity]
    """What a profiler is to record."""

    def synchronize(self) -> None:
        """Wait until the device has done everything."""

    def mark(self) -> Mark:
        """Put a mark in line behind what was launched."""

    def flush_cache(self) -> None:
        """Put in line a write that drives everything else out of the caches, and a pause."""

    def free_bytes(self) -> int:
        """Return how much memory is free."""

    def give_back_unused(self) -> None:
        """Give back what torch keeps for later, so that free memory shows what is in use."""

    def count(self) -> int:
        """Return how many such devices the machine has."""

    def describe(self) -> dict[str, Any]:
        """Return what it is, and the versions of what drives it."""


class CudaMark:
    """An event that is recorded on the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def seconds_until(self, later: "CudaMark") -> float:
        """Return the time between two recorded events."""
        return float(self._event.elapsed_time(later._event)) / 1000  # noqa: SLF001


class CudaDevice:
    """A CUDA device."""

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]  # noqa: RUF012  a constant

    def __init__(self, number: int) -> None:
        self.torch_device = torch.device("cuda", number)
        torch.cuda.set_device(self.torch_device)
        self._flushed: torch.Tensor | None = None

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self.torch_device)

    def mark(self) -> CudaMark:
        """Record an event."""
        return CudaMark()

    def flush_cache(self) -> None:
        """Write more than the caches hold, and pause, so that the host gets ahead."""
        if self._flushed is None:
            self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=self.torch_device)
        self._flushed.zero_()
        torch.cuda._sleep(PAUSED_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001  torch has no other

    def free_bytes(self) -> int:
        """Return what the driver says."""
        return int(torch.cuda.mem_get_info(self.torch_device)[0])

    def give_back_unused(self) -> None:
        """As CUDA's recording of a graph does, too."""
        torch.cuda.empty_cache()

    def count(self) -> int:
        """Return those that torch sees."""
        return torch.cuda.device_count()

    def describe(self) -> dict[str, Any]:
        """Return the device's name and sizes."""
        found = torch.cuda.get_device_properties(self.torch_device)
        return {
            "name": found.name,
            "capability": f"{found.major}.{found.minor}",
            "num_multiprocessors": found.multi_processor_count,
            "memory_bytes": found.total_memory,
            "cache_bytes": found.L2_cache_size,
            "driver": _read_driver(),
            "cuda": torch.version.cuda,
        }


class CpuMark:
    """A moment on the host."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def seconds_until(self, later: "CpuMark") -> float:
        """Return the time between two moments. It is never zero, because rates divide by it."""
        return max(later._at - self._at, 1e-9)  # noqa: SLF001


class StandIn:
    """The CPU in a GPU's place. What is measured on it means nothing."""

    torch_device = torch.device("cpu")
    activities = [ProfilerActivity.CPU]  # noqa: RUF012  a constant

    def synchronize(self) -> None:
        """Nothing is in line."""

    def mark(self) -> CpuMark:
        """Read the clock."""
        return CpuMark()

    def flush_cache(self) -> None:
        """A dry run's times mean nothing anyway."""

    def free_bytes(self) -> int:
        """Return as much as a small GPU has."""
        return 8 << 30

    def give_back_unused(self) -> None:
        """Nothing is kept."""

    def count(self) -> int:
        """Return as many as there are workers: on CPUs they share the cores."""
        return 2

    def describe(self) -> dict[str, Any]:
        """Say that it is no GPU."""
        return {"name": f"dry run on {platform.machine()}", "driver": "none", "cuda": "none"}


def open_device(*, is_dry_run: bool, number: int = 0) -> Device:
    """Return the device to measure, by its number."""
    return StandIn() if is_dry_run else CudaDevice(number)


def measure_seconds(device: Device, run: Callable[[], object], rounds: int) -> list[float]:
    """Return what each round took on the device, with cold caches and after two rounds of warming up.

    The flush comes first in line, with a pause. Meanwhile the host launches the rest, so that launches don't
    count.
    """
    for _ in range(2):
        run()
    spans = []
    for _ in range(rounds):
        device.flush_cache()
        begin = device.mark()
        run()
        spans.append((begin, device.mark()))
    device.synchronize()
    return [begin.seconds_until(end) for begin, end in spans]


def _read_driver() -> str:
    """Return the driver's version, as its kernel module reports it."""
    try:
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except OSError as error:
        return f"unknown: {error}"
