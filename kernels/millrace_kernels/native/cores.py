"""The number of computing threads: one for each physical core, because two would share it."""

import os
from collections.abc import Iterable
from pathlib import Path


def count_threads(limit: int, cpus: Iterable[int] | None = None, root: Path = Path("/sys")) -> int:
    """Return the number of physical cores among these CPUs (None: this process's), at most `limit`."""
    allowed = os.sched_getaffinity(0) if cpus is None else set(cpus)
    cores = {_core(cpu, root / "devices/system/cpu") for cpu in allowed}
    return max(1, min(limit, len(cores)))


def _core(cpu: int, folder: Path) -> str:
    """Return the name of a CPU's core, or the CPU's own number if the kernel does not list it."""
    try:
        return (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
