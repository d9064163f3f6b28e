"""How many CPUs this replica may use, and the environment that makes its libraries respect it.

The text worker's share of the replica's CPUs.
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace_runtime.execution.cgroups import MEMBERSHIP, MOUNT, find_groups

ENV_CPU_LIMIT = "MILLRACE_CPU_LIMIT"
"""CPUs, such as 0.5: for places that limit by other means than a cgroup."""


def read_num_cpus(
    environment: Mapping[str, str], cgroups: Path = MOUNT, membership: Path = MEMBERSHIP
) -> int:
    """Return how many CPUs this process may use: the least of all limits, rounded up, at least 1."""
    limits = [float(len(os.sched_getaffinity(0))), *_cgroup_quotas(cgroups, membership)]
    if (text := environment.get(ENV_CPU_LIMIT)) is not None:
        limits.extend(_number(text))
    return max(1, math.ceil(min(limits)))


def thread_environment(environment: Mapping[str, str], num_cpus: int) -> dict[str, str]:
    """Return the environment for a process that computes. Variables that the user set stay as they are.

    Waiting threads sleep instead of spinning: three two-thread processes on two cores made 56 steps/s in
    all with the defaults, 404 so.
    """
    return {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "OMP_NUM_THREADS": str(num_cpus),
        **environment,
    }


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


_MAX_THREADS = 4


def count_text_threads(environment: Mapping[str, str]) -> int:
    """Return how many threads tokenise, in a replica with these environment variables."""
    return min(_MAX_THREADS, read_num_cpus(environment))
