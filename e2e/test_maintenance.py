"""Pods that are evicted under load: one of several at a time, a last one once another took its place."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.api_client import RefusedError, create
from e2e.cluster.local_cluster import LocalCluster
from e2e.load import assert_unharmed, load_beside, long_streams_beside
from e2e.namespaces import path_of
from e2e.service import Service, service_in
from millrace_runtime.contract import LABEL_SERVICE

RATE = 2.0


@pytest.fixture(scope="module")
def service(product: LocalCluster) -> Iterator[Service]:
    """A service of as many replicas as a test asks for, not yet applied.

    It has a name of its own: `kubectl drain --pod-selector` waits for pods of all namespaces, and those of a
    former test may take ten minutes to end.
    """
    with service_in(product, "maintenance", "maintained") as found:
        found.spec["scaling"] = {"mode": "External"}
        yield found


def serve(service: Service, replicas: int) -> None:
    """Wait until so many replicas serve."""
    service.spec["replicas"] = replicas
    service.apply()
    service.wait_ready()
    service.wait_for("its pods", lambda: sum(map(is_ready, service.pods())) == replicas)


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
    serve(service, 1)
    (old,) = service.pods()
    node = old["spec"]["nodeName"]
    try:
        with load_beside(service, RATE) as load, long_streams_beside(service) as long:
            service.cluster.kubectl("cordon", node)
            service.wait_for("a budget that holds it", lambda: is_held(service), 20)
            selector = f"--pod-selector={LABEL_SERVICE}={service.name}"
            drain = ("drain", node, selector, "--ignore-daemonsets", "--delete-emptydir-data")
            service.cluster.kubectl(*drain, "--timeout=200s")
            service.wait_for("one replica", lambda: len(service.pods()) == 1)
            (new,) = service.pods()
            service.wait_ready()
    finally:
        service.cluster.kubectl("uncordon", node)
    assert new["spec"]["nodeName"] != node
    assert_unharmed(load, long)
    assert (read_budget(service)["spec"]["minAvailable"], service.status()["replicas"]) == (0, 1)


def test_a_second_eviction_waits_until_the_first_replica_is_replaced(service: Service) -> None:
    serve(service, 2)
    service.wait_for("room to evict one", lambda: count_evictable(service) == 1)
    first, second = service.pods()
    with load_beside(service, RATE) as load, long_streams_beside(service, 2) as long:
        time.sleep(5.0)
        evict(service, first)
        with pytest.raises(RefusedError, match="disruption budget"):
            evict(service, second)
        service.wait_for("one replica less", lambda: service.status().get("readyReplicas") == 1, 20)
        service.wait_for("another one in its place", lambda: count_evictable(service) == 1)
    assert first["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in service.pods()}
    assert second["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in service.pods()}
    assert_unharmed(load, long)


def count_evictable(service: Service) -> int:
    """Return how many pods the budget lets go now."""
    found = read_budget(service)
    is_seen = found["status"].get("observedGeneration") == found["metadata"]["generation"]
    return int(found["status"].get("disruptionsAllowed", 0)) if is_seen else 0


def evict(service: Service, pod: dict[str, Any]) -> None:
    """Ask the eviction API, as those who empty nodes do. Raises RefusedError."""
    metadata = {"name": pod["metadata"]["name"], "namespace": service.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    create(service.cluster, f"{path_of(service.namespace)}/pods/{metadata['name']}/eviction", eviction)
