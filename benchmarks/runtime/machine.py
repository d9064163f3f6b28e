"""What the run ran on, and how busy others kept it."""

import os
import platform
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

TELLING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm")
"""Of a CPU's features those that decide which kernels an engine has for it."""
SAMPLE_SECONDS = 0.7


def describe_machine() -> dict[str, Any]:
    """Return the CPU's name, its cores and the features that matter."""
    return read_cpu(Path("/proc/cpuinfo").read_text()) | {
        "cores": len(os.sched_getaffinity(0)),
        "system": f"Linux {platform.release()} {platform.machine()}",
    }


def read_cpu(cpuinfo: str) -> dict[str, Any]:
    """Return name and telling flags from the text of /proc/cpuinfo."""
    fields: dict[str, str] = dict(re.findall(r"^(.+?)\s*:\s*(.*)$", cpuinfo, re.MULTILINE))
    words = fields.get("flags", fields.get("Features", "")).split()
    return {
        "cpu": fields.get("model name", "unknown"),
        "flags": [flag for flag in TELLING_FLAGS if flag in words],
    }


class Ticks(NamedTuple):
    """The machine's CPU time since it started, in clock ticks."""

    total: int
    idle: int


def read_ticks(stat: str) -> Ticks:
    """Return what the first line of /proc/stat says: user nice system idle iowait irq softirq steal."""
    fields = [int(word) for word in stat.split("\n", 1)[0].split()[1:9]]
    return Ticks(sum(fields), fields[3] + fields[4])


def measure_busy_percent() -> float:
    """Return how much of the machine others use, while all engines are stopped."""
    before = read_ticks(Path("/proc/stat").read_text())
    time.sleep(SAMPLE_SECONDS)
    after = read_ticks(Path("/proc/stat").read_text())
    total = max(1, after.total - before.total)
    return round(100 * (1 - (after.idle - before.idle) / total), 1)
