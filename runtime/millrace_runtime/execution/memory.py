"""How much memory the host leaves us. Loads no library: the supervisor imports it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from millrace_fit.kv_cache import SHARE_OF_LIMIT, SHARE_OF_MACHINE, Budget, plan_host
from millrace_runtime.execution.cgroups import MEMBERSHIP, MOUNT, find_groups


class _Files(NamedTuple):
    """The files in which a version of cgroups has a group's memory."""

    folder: str
    controller: str
    """Its name in /proc/self/cgroup."""
    limit: str
    used: str
    stat_prefix: str
    """Prefix in memory.stat of the sums over the groups below."""


_VERSIONS = (
    _Files("", "", "memory.max", "memory.current", ""),
    _Files("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


class _Left(NamedTuple):
    """What a cgroup's limit leaves."""

    num_bytes: int
    limit: Path
    """The file that holds the limit."""


def usable_memory(
    text_bytes: int,
    cgroups: Path = MOUNT,
    meminfo: Path = Path("/proc/meminfo"),
    membership: Path = MEMBERSHIP,
) -> Budget:
    """Return a share of what the tightest cgroup's limit leaves, or else of what is free.

    `text_bytes` are left for the text worker.
    """
    free = _available(meminfo)
    left = min(_left_in_cgroups(cgroups, membership), default=None)
    if left is not None and left.num_bytes < free:
        return plan_host(left.num_bytes, text_bytes, SHARE_OF_LIMIT, f"{left.limit} leaves")
    return plan_host(free, text_bytes, SHARE_OF_MACHINE, "the machine has free")


def _left_in_cgroups(cgroups: Path, membership: Path) -> Iterator[_Left]:
    """Yield what the limits of our group and those above it leave, in every version of cgroups."""
    for files in _VERSIONS:
        for group in find_groups(cgroups / files.folder, files.controller, membership):
            if (left := _left_in_group(group, files)) is not None:
                yield left


def _left_in_group(group: Path, files: _Files) -> _Left | None:
    """Return the limit less what is used; None without a limit. Page cache counts as free."""
    try:
        limit = int((group / files.limit).read_text())
        used = int((group / files.used).read_text()) - _page_cache(group / "memory.stat", files.stat_prefix)
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return _Left(max(0, limit - max(0, used)), group / files.limit)


def _page_cache(stat: Path, prefix: str) -> int:
    names = {f"{prefix}inactive_file", f"{prefix}active_file"}
    try:
        pairs = [line.split() for line in stat.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return 0
    return sum(int(value) for name, value in pairs if name in names)


def _available(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} does not say MemAvailable")
