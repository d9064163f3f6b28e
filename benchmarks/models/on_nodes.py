"""Replicas whose model the node keeps, on a local cluster: how often it is downloaded, how late they start.

A replica on a node that has the model already is timed beside one whose model is in its image, in turn.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.runtime.progress import report
from e2e.cluster.build import get_programs
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import install_chart, wait_for_product
from e2e.model_servers import count_downloads, read_stories, serving
from e2e.namespaces import create_namespace
from e2e.node_cache import ROOT, running_node_cache
from e2e.node_disks import make_on_disk
from e2e.service import Service
from testing.model_sources.servers import FakeHub

NAMESPACE = "bench-models"
NODE = "gpu-0"
NUM_PODS = 10
PATIENCE_SECONDS = 180.0
POLL_SECONDS = 0.02
_SLOW = 2_000_000
"""Bytes a second of the Hub, so that all pods wait for the first one's fetch."""


class Pair(NamedTuple):
    """Seconds from an apply until a second replica has drawn first tokens."""

    kept: float
    """Where the node has the model."""
    local: float
    """Where the image has it."""


class Starts(NamedTuple):
    """What was measured."""

    num_downloads: int
    """Of pods of one node that started together."""
    pairs: list[Pair]


def measure_on_nodes(rounds: int) -> Starts:
    """Return what was measured. Raises AssertionError where a service does not get on, and says why."""
    hub = FakeHub(read_stories())
    with ExitStack() as stack:
        stack.enter_context(serving(hub))
        cluster = stack.enter_context(_running_cluster())
        kept, local = _make_service(cluster, "kept"), _make_service(cluster, "local")
        kept.spec["model"] = {"uri": f"hf://org/m@{hub.commit}", "cache": {"type": "NodeLocal"}}
        kept.spec["pod"]["env"] = [{"name": "HF_ENDPOINT", "value": hub.endpoint}]
        downloads = _count_downloads(kept, hub)
        report(f"{NUM_PODS} pods of one node made {downloads} downloads")
        _scale(local, 1)
        pairs = [Pair(_time_second(kept), _time_second(local)) for _ in range(rounds)]
        for service in (kept, local):
            service.delete()
    report(f"a second replica: {', '.join(f'{pair.kept:.2f} s beside {pair.local:.2f}' for pair in pairs)}")
    return Starts(downloads, pairs)


@contextmanager
def _running_cluster() -> Iterator[LocalCluster]:
    """Run a cluster of its own with Millrace and a node cache for the namespace."""
    get_programs()
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        cluster = LocalCluster(Path(folder))
        try:
            cluster.start()
            install_chart(cluster)
            wait_for_product(cluster, report)
            create_namespace(cluster, NAMESPACE)
            for node in ("gpu-0", "cpu-0"):
                make_on_disk(cluster, node, ROOT)
            with running_node_cache(cluster, NAMESPACE):
                yield cluster
        finally:
            cluster.stop()


def _make_service(cluster: LocalCluster, name: str) -> Service:
    service = Service(cluster, NAMESPACE, name)
    service.spec["scaling"] = {"mode": "External"}
    service.spec["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    service.spec["pod"] = {"nodeSelector": {"kubernetes.io/hostname": NODE}}
    return service


def _count_downloads(kept: Service, hub: FakeHub) -> int:
    """Let many pods start together on one node, and leave one of them."""
    hub.large.bytes_per_second = _SLOW
    _scale(kept, NUM_PODS)
    downloads = count_downloads(hub)
    hub.large.bytes_per_second = None
    _scale(kept, 1)
    return round(downloads)  # headers are asked for beside it


def _time_second(service: Service) -> float:
    """Return the seconds from an apply until a second replica has drawn first tokens, and take it back."""
    began = time.monotonic()
    _scale(service, 2)
    seconds = time.monotonic() - began
    _scale(service, 1)
    return seconds


def _scale(service: Service, count: int) -> None:
    """Apply a count, and wait until just so many pods are there and Ready: these have drawn first tokens."""
    service.spec["replicas"] = count
    service.apply()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while [_is_ready(pod) for pod in service.pods()] != [True] * count:
        assert time.monotonic() < deadline, service.explain()
        time.sleep(POLL_SECONDS)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
