"""The memory and the CPUs that the host leaves this replica, by its cgroups.

Standard library only: the supervisor imports it.
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from millrace_fit.kv_budget import SHARE_OF_LIMIT, SHARE_OF_MACHINE, Budget, plan_host

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
ENV_CPU_LIMIT = "MILLRACE_CPU_LIMIT"
"""CPUs, such as 0.5: for a limit that is not a cgroup's."""
_MAX_THREADS = 4


class _Files(NamedTuple):
    """The files with a group's memory, in one version of cgroups."""

    folder: str
    controller: str
    """Its name in /proc/self/cgroup."""
    limit: str
    used: str
    stat_prefix: str
    """The prefix in memory.stat of sums over the groups below."""


_VERSIONS = (
    _Files("", "", "memory.max", "memory.current", ""),
    _Files("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


class _Left(NamedTuple):
    """The free memory within a cgroup's limit."""

    num_bytes: int
    limit: Path
    """The file that holds the limit."""


def measure_usable_memory(
    text_bytes: int,
    cgroups: Path = MOUNT,
    meminfo: Path = Path("/proc/meminfo"),
    membership: Path = MEMBERSHIP,
) -> Budget:
    """Return a share of the free memory within the tightest cgroup's limit, or else of the machine's.

    `text_bytes` remain for the text worker.
    """
    free = _available(meminfo)
    left = min(_left_in_cgroups(cgroups, membership), default=None)
    if left is not None and left.num_bytes < free:
        return plan_host(left.num_bytes, text_bytes, SHARE_OF_LIMIT, f"within {left.limit}")
    return plan_host(free, text_bytes, SHARE_OF_MACHINE, "of the machine", is_shared=True)


def read_num_cpus(
    environment: Mapping[str, str], cgroups: Path = MOUNT, membership: Path = MEMBERSHIP
) -> int:
    """Return how many CPUs this process may use: the least of all limits, rounded up, at least 1."""
    limits = [float(len(os.sched_getaffinity(0))), *_cgroup_quotas(cgroups, membership)]
    if (text := environment.get(ENV_CPU_LIMIT)) is not None:
        limits.extend(_number(text))
    return max(1, math.ceil(min(limits)))


def build_thread_environment(environment: Mapping[str, str], num_cpus: int) -> dict[str, str]:
    """Return the environment for a process that computes. It keeps the variables that the user set.

    Waiting threads sleep instead of spinning: three two-thread processes on two cores made 404 steps/s
    together, and 56 with the defaults.
    """
    return {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "OMP_NUM_THREADS": str(num_cpus),
        **environment,
    }


def count_text_threads(environment: Mapping[str, str]) -> int:
    """Return the number of threads that tokenise, by the replica's environment."""
    return min(_MAX_THREADS, read_num_cpus(environment))


def _left_in_cgroups(cgroups: Path, membership: Path) -> Iterator[_Left]:
    """Yield the free memory in our group and in those above it, in every version of cgroups."""
    for files in _VERSIONS:
        for group in find_groups(cgroups / files.folder, files.controller, membership):
            if (left := _left_in_group(group, files)) is not None:
                yield left


def _left_in_group(group: Path, files: _Files) -> _Left | None:
    """Return the limit minus the used memory; None without a limit. Page cache counts as free."""
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


def _cgroup_quotas(cgroups: Path, membership: Path) -> Iterator[float]:
    """Yield the quotas of our group and those above it, of version 2 and of version 1."""
    for group in find_groups(cgroups, "", membership):
        match _read_words(group / "cpu.max"):
            case [quota, period] if quota != "max":
                yield int(quota) / int(period)
    for group in find_groups(cgroups / "cpu", "cpu", membership):
        match _read_words(group / "cpu.cfs_quota_us"), _read_words(group / "cpu.cfs_period_us"):
            case [quota], [period] if int(quota) > 0:
                yield int(quota) / int(period)


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(text: str) -> Iterator[float]:
    try:
        value = float(text)
    except ValueError:
        return
    if value > 0:
        yield value


def find_groups(root: Path, controller: str, membership: Path) -> Iterator[Path]:
    """Yield the folders of our group and of those above it, up to the root of a hierarchy.

    `controller` is its name in /proc/self/cgroup. Version 2 has none.
    """
    group = _find_group(membership, controller)
    for parent in (group, *group.parents):
        yield root / parent


def _find_group(membership: Path, controller: str) -> PurePosixPath:
    """Return our group below the root, or the root itself if /proc/self/cgroup does not name the group.

    In a container the path may be the host's, while only the mount's root exists.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controller in controllers.split(","):
            return PurePosixPath(path.lstrip("/"))
    return PurePosixPath()
