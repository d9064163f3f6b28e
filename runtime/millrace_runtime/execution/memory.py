"""How much memory this process may still take, on the host."""

from pathlib import Path

SHARE_OF_LIMIT = 0.8
"""Of what a cgroup's limit leaves: the rest is for activations and the pod's other processes."""
SHARE_OF_MACHINE = 0.5
"""Of what a machine without a limit has free: others live there too."""


def usable_bytes(cgroups: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory to plan with: a share of what the cgroup's limit leaves, or else of what is free."""
    free = _available(meminfo)
    left = _left_in_cgroup(cgroups)
    if left is not None and left < free:
        return int(left * SHARE_OF_LIMIT)
    return int(free * SHARE_OF_MACHINE)


def _left_in_cgroup(cgroups: Path) -> int | None:
    """Read version 2's limit and use, else version 1's; None without a limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0, int((cgroups / limit).read_text()) - int((cgroups / used).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None


def _available(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} does not say MemAvailable")
