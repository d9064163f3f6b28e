"""A node is lost under load with a replica on it: another takes its place, and status says so."""

import time
from pathlib import Path
from typing import Any

import pytest

from e2e.host_processes import pod_process_ids
from e2e.load import load_beside
from e2e.replica_metrics import read_running
from e2e.service import Service
from e2e.spare_node import NAME, run_spare_node
from testing.polling import wait_until

RATE = 1.0
LONG = 600
"""Tokens of a stream that is still under way when the node dies."""
UNHEARD_SECONDS = 90.0
"""Kubernetes waits 50 s for a node's heartbeat, and marks its pods then."""
TOLERATION: dict[str, Any] = {
    "key": "node.kubernetes.io/unreachable",
    "operator": "Exists",
    "effect": "NoExecute",
    "tolerationSeconds": 5,
}
"""Without it a replica waits 300 s for its node to come back, as all pods do."""


@pytest.mark.long
# The load gives up connections that are being made to the lost node, and its library leaves one open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lost_nodes_replica_is_replaced_elsewhere_without_hands(service: Service, tmp_path: Path) -> None:
    service.spec["scaling"] = {"mode": "External"}
    service.spec["pod"] = {"tolerations": [TOLERATION]}
    service.spec["replicas"] = 1
    service.apply()
    service.wait_ready()
    with run_spare_node(service.cluster, tmp_path / NAME) as node:
        with node.taking_all():
            service.spec["replicas"] = 2
            service.apply()
            service.wait_for("two", lambda: service.status().get("readyReplicas") == 2, 60)
        (lost,) = find_pods_on(service, NAME)
        with load_beside(service, RATE, LONG) as load:
            time.sleep(15.0)  # by then the new replica has its share
            wait_until("a stream under way on it", lambda: read_running(lost) > 0)
            node.lose()
            wait_until("its pods die with it", lambda: not pod_process_ids(lost))
            lost_at = time.monotonic() - load.began
            service.wait_for("told", lambda: service.status().get("readyReplicas") == 1, UNHEARD_SECONDS)
            told = {kind: service.condition(kind) for kind in ("Ready", "Degraded")}
            service.wait_for("two again", lambda: service.status().get("readyReplicas") == 2, 60)
            time.sleep(2.0)
        assert (told["Ready"]["status"], told["Degraded"]["status"]) == ("True", "True"), told
        assert told["Degraded"]["reason"] == "NotReady", told
        assert lost["metadata"]["name"] in told["Degraded"]["message"], told
        assert len(service.pods()) == 2
        assert not find_pods_on(service, NAME)
        service.wait_for("whole", lambda: service.condition("Degraded")["status"] == "False", 20)
    harmed = [stream for stream in load.streams if stream.is_truncated or stream.is_refused]
    assert any(stream.is_truncated for stream in harmed), "no stream was under way where the node died"
    assert all(stream.sent < lost_at for stream in harmed), (lost_at, harmed)
    assert all("The replica broke off" in str(stream.error) for stream in harmed), harmed


def find_pods_on(service: Service, node: str) -> list[dict[str, Any]]:
    return [pod for pod in service.pods() if pod["spec"].get("nodeName") == node]
