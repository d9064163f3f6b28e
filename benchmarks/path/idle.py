"""CPU that the product's processes use while nobody asks anything."""

import json
import os
import time
from pathlib import Path

from e2e.cluster.local_cluster import LocalCluster
from e2e.host_processes import pod_process_ids

SAMPLE_SECONDS = 30.0
SETTLE_SECONDS = 15.0
COMPONENTS = ("operator", "gateway", "replica")


def measure_idle(cluster: LocalCluster) -> dict[str, float]:
    """Return each component's share of one core in percent, its worst pod's, and the worst of all."""
    time.sleep(SETTLE_SECONDS)
    pods = {name: component_pods(cluster, name) for name in COMPONENTS}
    before = {name: [cpu_seconds(pod) for pod in found] for name, found in pods.items()}
    time.sleep(SAMPLE_SECONDS)
    shares = {
        name: max(
            (cpu_seconds(pod) - then) / SAMPLE_SECONDS for pod, then in zip(found, before[name], strict=True)
        )
        for name, found in pods.items()
    }
    figures = {f"idle_{name}_cpu_percent": round(100 * share, 2) for name, share in shares.items()}
    return {"idle_cpu_percent": max(figures.values()), **figures}


def component_pods(cluster: LocalCluster, component: str) -> list[dict[str, object]]:
    """Return the pods of a component in all namespaces."""
    label = f"millrace.dev/component={component}"
    found: list[dict[str, object]] = json.loads(
        cluster.kubectl("get", "pods", "-A", "-l", label, "-o", "json")
    )["items"]
    return found


def cpu_seconds(pod: dict[str, object]) -> float:
    """Return the CPU time of a pod's processes so far, in seconds."""
    ticks = sum(process_ticks(pid) for pid in pod_process_ids(pod))
    return ticks / os.sysconf("SC_CLK_TCK")


def process_ticks(pid: int) -> int:
    """Return user and system time of a process in clock ticks; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
