"""The control plane is real: its API, its versions, its controllers, its scheduler, its Prometheus."""

import json
import ssl
import urllib.request

import pytest

from e2e.cluster.controlplane import client_context, is_healthy
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.loopback import answers
from e2e.namespaces import wait_for_account

pytestmark = pytest.mark.reads("e2e", "images", "development", "operator/millrace_kubernetes")


def test_the_api_answers_at_the_version_of_its_kubectl(cluster: LocalCluster) -> None:
    versions = json.loads(cluster.kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"].startswith("v1.34.")
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]


def test_a_namespace_gets_its_service_account(cluster: LocalCluster) -> None:
    cluster.kubectl("create", "namespace", "fresh")
    wait_for_account(cluster, "fresh")
    token = cluster.kubectl("-n", "fresh", "create", "token", "default")
    assert token.count(".") == 2
    cluster.kubectl("delete", "namespace", "fresh", "--wait=false")


def test_the_gpu_node_is_ready_and_offers_eight(cluster: LocalCluster) -> None:
    node = json.loads(cluster.kubectl("get", "node", "gpu-0", "-o", "json"))
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert {"type": "Ready", "status": "True"}.items() <= next(
        condition for condition in node["status"]["conditions"] if condition["type"] == "Ready"
    ).items()


def test_permissions_are_checked(cluster: LocalCluster) -> None:
    with pytest.raises(PartFailedError, match="cannot list resource"):
        cluster.kubectl("get", "pods", "--as", "system:serviceaccount:default:default")


def test_nobody_but_the_api_server_may_speak_to_etcd(cluster: LocalCluster) -> None:
    keys, etcd = cluster.layout.keys, f"https://127.0.0.1:{cluster.ports.etcd}/health"
    assert answers(etcd, client_context(keys, "etcd-ca", "etcd-client"))
    assert not answers(etcd, client_context(keys, "etcd-ca", "admin"))
    assert not answers(etcd, ssl.create_default_context(cafile=str(keys / "etcd-ca.crt")))
    assert not answers(etcd.replace("https", "http"))


def test_a_dead_scheduler_is_not_ready(cluster: LocalCluster) -> None:
    port = cluster.ports.scheduler
    assert is_healthy(cluster.layout, port)
    cluster.kill_part("kube-scheduler")
    assert not is_healthy(cluster.layout, port)
    cluster.start_part("kube-scheduler")
    assert is_healthy(cluster.layout, port)


def test_prometheus_answers_and_can_be_taken_away_and_brought_back(cluster: LocalCluster) -> None:
    ready = f"{cluster.prometheus_url}/-/ready"
    assert answers(ready)
    cluster.kill_part("prometheus")
    assert not answers(ready)
    cluster.start_part("prometheus")
    with urllib.request.urlopen(f"{cluster.prometheus_url}/api/v1/targets?state=active") as response:
        assert json.load(response)["status"] == "success"


def test_the_controllers_survive_the_api_servers_restart(cluster: LocalCluster) -> None:
    cluster.kill_part("kube-apiserver")
    cluster.start_part("kube-apiserver")
    cluster.kubectl("create", "namespace", "after")
    wait_for_account(cluster, "after")
    cluster.kubectl("delete", "namespace", "after", "--wait=false")
