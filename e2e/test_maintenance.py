"""A node that is emptied under load: the replica on it is replaced elsewhere first."""

from typing import Any

from e2e.load import assert_unharmed, load_beside
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
        with load_beside(service, RATE) as load:
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
    assert_unharmed(load)
    assert (read_budget(service)["spec"]["minAvailable"], service.status()["replicas"]) == (0, 1)
