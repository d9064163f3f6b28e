"""The leading operator dies without a word: another leads, and nothing that serves notices."""

import json
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE
from e2e.leader import find_leader, kill_leader
from e2e.service import Service, is_absent, service_in

SETTLE_SECONDS = 5.0
"""In which a new leader lists everything and looks at every service."""


@pytest.fixture(scope="module")
def service(product: LocalCluster) -> Iterator[Service]:
    """A service of one replica that serves."""
    with service_in(product, "failover") as found:
        found.spec["scaling"] = {"mode": "External"}
        found.spec["replicas"] = 1
        found.apply()
        found.wait_ready()
        yield found


def list_versions(service: Service) -> dict[str, str]:
    """The resourceVersion of the service and of each child: every write raises one."""
    kinds = "infsvc,deployments,services,controllerrevisions,poddisruptionbudgets"
    items = json.loads(service.kubectl("get", kinds, "-o", "json"))["items"]
    return {f"{i['kind']}/{i['metadata']['name']}": i["metadata"]["resourceVersion"] for i in items}


def test_the_other_operator_takes_over(service: Service) -> None:
    # Prometheus reports it some scrapes later, and then status is what it will be.
    service.wait_for("told what a replica is", lambda: "serving" in service.status()["model"], 60)
    before = {pod["metadata"]["uid"] for pod in service.pods()}
    versions = list_versions(service)

    leader = kill_leader(service.cluster)
    service.wait_for("led by another", lambda: find_leader(service.cluster) not in {"", leader}, 40)
    time.sleep(SETTLE_SECONDS)
    assert list_versions(service) == versions

    service.kubectl("scale", "infsvc", "stories", "--replicas=2")
    service.wait_for("scaled by the new leader", lambda: service.status().get("readyReplicas") == 2, 60)

    after = {pod["metadata"]["uid"]: pod for pod in service.pods()}
    assert before < set(after)
    assert all(s["restartCount"] == 0 for pod in after.values() for s in pod["status"]["containerStatuses"])
    scale = json.loads(service.kubectl("get", "infsvc", "stories", "--subresource=scale", "-o", "json"))
    assert scale["status"]["replicas"] == 2
    assert "millrace.dev/service=stories" in scale["status"]["selector"]


def test_delete_returns_while_no_operator_runs(service: Service) -> None:
    """The service is gone after that: this test is the file's last one."""
    operator = ("-n", NAMESPACE, "scale", "deployment", "millrace-operator")
    service.cluster.kubectl(*operator, "--replicas=0")
    pods = ("-n", NAMESPACE, "pods", "-l", "millrace.dev/component=operator")
    children = ("-n", service.namespace, "deployments,services", "-l", "millrace.dev/service=stories")
    try:
        service.wait_for("without an operator", lambda: is_absent(service.cluster, *pods))
        service.delete()
        assert is_absent(service.cluster, "-n", service.namespace, "infsvc", "stories")
        service.wait_for("rid of its children", lambda: is_absent(service.cluster, *children))
    finally:
        service.cluster.kubectl(*operator, "--replicas=2")
        service.cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment", "millrace-operator")
