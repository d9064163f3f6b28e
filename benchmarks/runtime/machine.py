"""What the run ran on."""

import os
import platform
import re
from pathlib import Path
from typing import Any

from millrace_kernels.native.cores import count_threads
from millrace_runtime.execution.host import read_num_cpus

TELLING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm")
"""Of a CPU's features those that decide which kernels an engine has for it."""
MODEL_FIELDS = (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))


def read_num_threads() -> int:
    """Return how many threads every engine gets: as many as a replica of ours takes here.

    The environment's limits and thread counts don't count; `ProcessGroup` hides them from the engines too.
    """
    return count_threads(read_num_cpus({}))


def pick_cpus(num_threads: int) -> list[int]:
    """Return so many of the CPUs that we may use, each of another core."""
    chosen: list[int] = []
    for cpu in sorted(os.sched_getaffinity(0)):
        if count_threads(num_threads, [*chosen, cpu]) > len(chosen):
            chosen.append(cpu)
    return chosen


def describe_machine() -> dict[str, Any]:
    """Return the CPU's name, its cores and the features that matter."""
    return read_cpu(Path("/proc/cpuinfo").read_text()) | {
        "cores": len(os.sched_getaffinity(0)),
        "system": f"Linux {platform.release()} {platform.machine()}",
    }


def read_cpu(cpuinfo: str) -> dict[str, Any]:
    """Return name, model and telling flags from the text of /proc/cpuinfo."""
    fields: dict[str, str] = dict(re.findall(r"^(.+?)\s*:\s*(.*)$", cpuinfo, re.MULTILINE))
    words = fields.get("flags", fields.get("Features", "")).split()
    numbers = [f"{name} {fields[field]}" for name, field in MODEL_FIELDS if field in fields]
    return (
        {"cpu": fields.get("model name", "unknown")}
        | ({"cpu_model": ", ".join(numbers)} if numbers else {})
        | {"flags": [flag for flag in TELLING_FLAGS if flag in words]}
    )
