"""The memory that this machine has to give."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
"""Of version 2. Only a container sees files of a limit here: its own."""


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Return the bytes that may be used without swapping, in a container at most what its limit leaves."""
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    return min([int(line.split()[1]) * 1024, *_left_in(cgroup)])


def _left_in(cgroup: Path) -> list[int]:
    """Return the limit less what is used, or nothing where there is none. Page cache counts as free."""
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        pairs = [line.split() for line in (cgroup / "memory.stat").read_text().splitlines()]
    except (OSError, ValueError):  # no such file, or "max"
        return []
    files = sum(int(value) for name, value in pairs if name in {"inactive_file", "active_file"})
    return [max(0, limit - used + files)]
