"""What something takes of the machine while it happens: downloads, memory, disk."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.memory import available_memory

SAMPLE_SECONDS = 0.5


@dataclass
class Footprint:
    """Bytes. They count what the whole machine does meanwhile, so it has to do nothing else."""

    downloaded: int = 0
    """Received from other machines."""
    peak_memory: int = 0
    """The most that was taken of the memory available at the beginning. Page cache counts as available."""


@contextmanager
def watch_footprint() -> Iterator[Footprint]:
    """Measure what happens inside; the footprint is whole at its end."""
    found, is_over = Footprint(), threading.Event()
    received, available = read_received(), available_memory()

    def sample() -> None:
        while not is_over.wait(SAMPLE_SECONDS):
            found.peak_memory = max(found.peak_memory, available - available_memory())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield found
    finally:
        is_over.set()
        sampler.join()
        found.downloaded = read_received() - received


def read_received(table: Path = Path("/proc/net/dev")) -> int:
    """Return the bytes that all interfaces but the loopback have received since they are up."""
    rows = (line.split(":") for line in table.read_text().splitlines() if ":" in line)
    return sum(int(numbers.split()[0]) for name, numbers in rows if name.strip() != "lo")


def measure_disk(folder: Path) -> int:
    """Return the bytes that a folder's files take on the disk; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(place, name))  # noqa: PTH118  a hundred thousand files
            seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def settle_memory(seconds: float = 5.0) -> int:
    """Return the available memory once what has ended has given its own back."""
    time.sleep(seconds)
    return available_memory()
