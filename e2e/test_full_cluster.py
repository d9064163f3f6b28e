"""Two services want the same accelerators: PriorityClasses say which has them; the other's status says so."""

from collections.abc import Iterator

import pytest

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.nodes.settings import ACCELERATOR_RESOURCE
from e2e.plugin import wait_for_words
from e2e.service import Service

ACCELERATORS = 8
"""Of the one node that has any."""
NIGHTLY, URGENT = "millrace-test-nightly", "millrace-test-urgent"


@pytest.fixture
def priorities(cluster: LocalCluster) -> Iterator[None]:
    """Two PriorityClasses of a platform team."""
    for name, value in ((NIGHTLY, "-10"), (URGENT, "1000")):
        cluster.kubectl("create", "priorityclass", name, f"--value={value}")
    yield
    for name in (NIGHTLY, URGENT):
        cluster.kubectl("delete", "priorityclass", name)


def build(product: LocalCluster, namespace: str, name: str, priority: str, replicas: int) -> Service:
    """Return a service whose replicas take half of the accelerators each."""
    service = Service(product, namespace, name)
    service.spec["resources"]["limits"] |= {ACCELERATOR_RESOURCE: str(ACCELERATORS // 2), "cpu": "2"}
    service.spec["pod"] = {"priorityClassName": priority}
    service.spec["scaling"] |= {"minReplicas": replicas, "maxReplicas": replicas}
    return service


def count_serving(service: Service) -> int:
    conditions = [pod["status"].get("conditions", []) for pod in service.pods()]
    return sum(any(c["type"] == "Ready" and c["status"] == "True" for c in own) for own in conditions)


@pytest.mark.usefixtures("priorities")
def test_the_service_of_lower_priority_gives_way_says_so_and_comes_back(
    product: LocalCluster, namespace: str
) -> None:
    nightly = build(product, namespace, "nightly", NIGHTLY, 2)
    urgent = build(product, namespace, "urgent", URGENT, 1)
    try:
        nightly.apply()
        nightly.wait_ready()
        assert count_serving(nightly) == 2
        urgent.apply()
        urgent.wait_ready()
        nightly.wait_for("without room", lambda: nightly.status().get("readyReplicas") == 1)
        told = wait_for_words(nightly, "Pending: no node has")
        assert "WANT 2 HAVE 1  +1 Pending: no node has 4 example.com/accelerator free" in told
        assert "DO free 4 example.com/accelerator on a node, or add one" in told
        assert count_serving(nightly) == 1
        assert nightly.status()["scaling"]["desiredReplicas"] == 2
        assert len(nightly.pods()) == 2

        urgent.delete()
        nightly.wait_for("back", lambda: count_serving(nightly) == 2)
        wait_for_words(nightly, "HAVE 2")
    finally:
        urgent.discard()
        nightly.discard()
