"""The leading operator dies without a word: another leads, and nothing that serves notices."""

import json

from e2e.cluster.product import NAMESPACE
from e2e.host_processes import kill_pod_processes
from e2e.service import Service


def find_leader(service: Service) -> str:
    lease = service.cluster.kubectl("-n", NAMESPACE, "get", "lease", "millrace-operator", "-o", "json")
    return str(json.loads(lease)["spec"].get("holderIdentity") or "")


def test_the_other_operator_takes_over(service: Service) -> None:
    service.spec["scaling"] = {"mode": "External"}
    service.spec["replicas"] = 1
    service.apply()
    service.wait_ready()
    before = {pod["metadata"]["uid"] for pod in service.pods()}
    leader = find_leader(service)
    pod = json.loads(service.cluster.kubectl("-n", NAMESPACE, "get", "pod", leader, "-o", "json"))

    assert kill_pod_processes(pod) > 0
    # Were its container restarted in place, it would hold the Lease still, under the same name.
    service.cluster.kubectl("-n", NAMESPACE, "delete", "pod", leader, "--force", "--grace-period=0")
    service.wait_for("led by another", lambda: find_leader(service) not in {"", leader}, 40)
    service.kubectl("scale", "infsvc", "stories", "--replicas=2")
    service.wait_for("scaled by the new leader", lambda: service.status().get("readyReplicas") == 2, 60)

    after = {pod["metadata"]["uid"]: pod for pod in service.pods()}
    assert before < set(after)
    assert all(s["restartCount"] == 0 for pod in after.values() for s in pod["status"]["containerStatuses"])
    scale = json.loads(service.kubectl("get", "infsvc", "stories", "--subresource=scale", "-o", "json"))
    assert scale["status"]["replicas"] == 2
    assert "millrace.dev/service=stories" in scale["status"]["selector"]


def test_delete_returns_while_no_operator_runs(service: Service) -> None:
    service.apply()
    service.wait_ready()
    operator = ("-n", NAMESPACE, "scale", "deployment", "millrace-operator")
    service.cluster.kubectl(*operator, "--replicas=0")
    try:
        service.delete()
    finally:
        service.cluster.kubectl(*operator, "--replicas=2")
        service.cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment", "millrace-operator")
