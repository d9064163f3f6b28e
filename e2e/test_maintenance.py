"""Pods that are evicted under load: one of several at a time, a last one once another took its place."""

import json
import time
from typing import Any

import pytest

from e2e.cluster.errors import PartFailedError
from e2e.load import assert_unharmed, load_beside, long_streams_beside
from e2e.service import Service
from millrace_runtime.contract import LABEL_SERVICE

RATE = 2.0


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def read_budget(service: Service) -> dict[str, Any]:
    return service.get("poddisruptionbudget", service.name)


def is_held(service: Service) -> bool:
    """Whether the API server knows by now that nothing may be evicted."""
    found = read_budget(service)
    is_seen = found["status"].get("observedGeneration") == found["metadata"]["generation"]
    return bool(is_seen and found["spec"]["minAvailable"] == 1)


def test_a_drain_waits_for_the_replacement_of_the_only_replica(service: Service) -> None:
    service.spec["scaling"] = {"mode": "External"}
    service.spec["replicas"] = 1
    service.apply()
    service.wait_ready()
    (old,) = service.pods()
    node = old["spec"]["nodeName"]
    try:
        with load_beside(service, RATE) as load, long_streams_beside(service) as long:
            service.cluster.kubectl("cordon", node)
            service.wait_for("a budget that holds it", lambda: is_held(service), 20)
            selector = f"--pod-selector={LABEL_SERVICE}={service.name}"
            drain = ("drain", node, selector, "--ignore-daemonsets", "--delete-emptydir-data")
            service.cluster.kubectl(*drain, "--timeout=120s")
            service.wait_for("one replica", lambda: len(service.pods()) == 1, 60)
            (new,) = service.pods()
            service.wait_ready()
    finally:
        service.cluster.kubectl("uncordon", node)
    assert new["spec"]["nodeName"] != node
    assert_unharmed(load, long)
    assert (read_budget(service)["spec"]["minAvailable"], service.status()["replicas"]) == (0, 1)


def test_a_second_eviction_waits_until_the_first_replica_is_replaced(service: Service) -> None:
    service.spec["scaling"] = {"mode": "External"}
    service.spec["replicas"] = 2
    service.apply()
    service.wait_ready()
    service.wait_for("room to evict one", lambda: count_evictable(service) == 1, 60)
    first, second = service.pods()
    with load_beside(service, RATE) as load, long_streams_beside(service, 2) as long:
        time.sleep(5.0)
        evict(service, first)
        with pytest.raises(PartFailedError, match="disruption budget"):
            evict(service, second)
        service.wait_for("one replica less", lambda: service.status().get("readyReplicas") == 1, 20)
        service.wait_for("another one in its place", lambda: count_evictable(service) == 1, 60)
    assert first["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in service.pods()}
    assert second["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in service.pods()}
    assert_unharmed(load, long)


def count_evictable(service: Service) -> int:
    """Return how many pods the budget lets go now."""
    found = read_budget(service)
    is_seen = found["status"].get("observedGeneration") == found["metadata"]["generation"]
    return int(found["status"].get("disruptionsAllowed", 0)) if is_seen else 0


def evict(service: Service, pod: dict[str, Any]) -> None:
    """Ask the eviction API, as those who empty nodes do. Raises PartFailedError where it refuses."""
    metadata = {"name": pod["metadata"]["name"], "namespace": service.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{service.namespace}/pods/{metadata['name']}/eviction"
    service.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
