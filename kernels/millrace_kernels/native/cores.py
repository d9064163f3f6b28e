"""How many threads compute: one for each physical core, as two on a core share its arithmetic and caches."""

import os
from collections.abc import Iterable
from pathlib import Path


def count_threads(limit: int, cpus: Iterable[int] | None = None, root: Path = Path("/sys")) -> int:
    """Return at most `limit` threads, and no more than physical cores among these CPUs (ours, if None)."""
    allowed = os.sched_getaffinity(0) if cpus is None else set(cpus)
    cores = {_core(cpu, root / "devices/system/cpu") for cpu in allowed}
    return max(1, min(limit, len(cores)))


def _core(cpu: int, folder: Path) -> str:
    """Return the name of a CPU's core, or the CPU's own number where the kernel does not say."""
    try:
        return (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
