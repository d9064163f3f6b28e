"""Models that nodes keep on their own disks: one download a node, however many pods start together."""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import PartFailedError
from e2e.cluster.nodes.settings import disk_of
from e2e.completion import complete
from e2e.model_servers import count_downloads
from e2e.namespaces import create_namespace
from e2e.node_cache import ROOT, run_reader, running_node_cache
from e2e.node_disks import make_on_disk
from e2e.plugin import ask_namespace
from e2e.polling import wait_until
from e2e.service import Service
from e2e.spare_node import NAME as SPARE
from e2e.spare_node import run_spare_node
from tests.fetch.servers import FakeHub

HOST = "kubernetes.io/hostname"
READER = "reader"
TOKEN = "a-secret-of-the-team"


@pytest.fixture
def kept(fetched: Service) -> Iterator[Service]:
    """A service whose model the nodes keep, of many small replicas, not yet applied."""
    keep_model(fetched)
    with running_node_cache(fetched.cluster, fetched.namespace):
        yield fetched
        fetched.delete()


def keep_model(service: Service) -> None:
    """Have the nodes keep a service's model once it is applied, and make the folders for that."""
    service.spec["model"]["cache"] = {"type": "NodeLocal"}
    service.spec["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    service.spec["scaling"] = {"mode": "External"}
    for node in ("gpu-0", "cpu-0"):
        make_on_disk(service.cluster, node, ROOT)


@pytest.fixture
def neighbours(fetched: Service) -> Iterator[tuple[Service, Service]]:
    """Services of two namespaces that ask for one model, not yet applied."""
    other = Service(fetched.cluster, f"{fetched.namespace}-other", manifest=deepcopy(fetched.manifest))
    create_namespace(other.cluster, other.namespace)
    for one in (fetched, other):
        keep_model(one)
    with running_node_cache(fetched.cluster, fetched.namespace, beside=(other.namespace,)):
        yield fetched, other
        for one in (fetched, other):
            one.delete()
            one.kubectl("delete", "pod", READER, "--ignore-not-found")
    other.cluster.kubectl("delete", "namespace", other.namespace, "--wait=false")


def has_model(pod: dict[str, Any]) -> bool:
    """Whether the container that fetches has ended well."""
    containers = pod.get("status", {}).get("initContainerStatuses", [])
    return bool(containers) and all(
        one.get("state", {}).get("terminated", {}).get("exitCode") == 0 for one in containers
    )


def start(service: Service, count: int, **placement: Any) -> set[str]:
    """Apply it, wait until so many pods have their model, and return their nodes."""
    service.spec["pod"] |= placement
    service.spec["replicas"] = count
    service.apply()
    service.wait_for("the model at each pod", lambda: sum(map(has_model, service.pods())) == count, 120)
    return {pod["spec"]["nodeName"] for pod in service.pods()}


def wait_for_nodes(service: Service, count: int) -> list[str]:
    """Wait until the scheduler has placed so many pods, and return the node of each."""

    def find() -> list[str]:
        return [pod["spec"]["nodeName"] for pod in service.pods() if "nodeName" in pod["spec"]]

    service.wait_for(f"{count} pods on nodes", lambda: len(find()) == count)
    return find()


def test_ten_pods_that_start_together_on_a_node_download_a_model_once(kept: Service, hub: FakeHub) -> None:
    hub.large.bytes_per_second = 2_000_000  # so that all of them wait for the first
    assert start(kept, 10, nodeSelector={HOST: "gpu-0"}) == {"gpu-0"}
    assert 1 <= count_downloads(hub) < 1.5
    kept.wait_ready(180)
    assert complete(kept)
    assert kept.status()["model"]["cache"]["claimName"] == "millrace-models"


def test_each_of_three_nodes_downloads_it_once_and_later_pods_find_it_there(
    kept: Service, hub: FakeHub, tmp_path: Path
) -> None:
    spread = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
    (disk_of(tmp_path, SPARE) / ROOT.lstrip("/")).mkdir(parents=True)
    with run_spare_node(kept.cluster, tmp_path):
        nodes = start(kept, 3, topologySpreadConstraints=[spread])
        assert nodes == {"gpu-0", "cpu-0", SPARE}
        assert 3 <= count_downloads(hub) < 3.5
        hub.large.bytes_per_second = 1  # whoever asks for it again would wait for an hour
        wait_until(
            "nodes that tell of it", lambda: "cpu-0, gpu-0, spare" in ask_namespace(kept, "models"), 60
        )
        start(kept, 6)
        assert 3 <= count_downloads(hub) < 3.5
        kept.delete()


def test_the_scheduler_prefers_the_node_that_has_the_model_to_nodes_that_have_no_replica(
    kept: Service, hub: FakeHub, tmp_path: Path
) -> None:
    """By itself it spreads the pods of a ReplicaSet, and the others have more room than the spare node."""
    (disk_of(tmp_path, SPARE) / ROOT.lstrip("/")).mkdir(parents=True)
    with run_spare_node(kept.cluster, tmp_path) as spare:
        with spare.taking_all():
            assert start(kept, 1) == {SPARE}
            wait_until("a node that tells of it", lambda: SPARE in ask_namespace(kept, "models"), 60)
        hub.large.bytes_per_second = 1  # a pod on another node would wait for an hour
        for count in (2, 3):
            kept.spec["replicas"] = count
            kept.apply()
            assert wait_for_nodes(kept, count) == [SPARE] * count
        kept.wait_ready(120)
        assert count_downloads(hub) < 1.5
        kept.delete()


@pytest.mark.long
def test_a_gated_model_that_a_node_keeps_for_one_namespace_is_out_of_reach_of_another(
    neighbours: tuple[Service, Service], hub: FakeHub
) -> None:
    hub.token = TOKEN
    owner, other = neighbours
    owner.kubectl("create", "secret", "generic", "hub", f"--from-literal=HF_TOKEN={TOKEN}")
    owner.spec["model"]["credentials"] = {"secretName": "hub"}
    assert start(owner, 1, nodeSelector={HOST: "gpu-0"}) == {"gpu-0"}
    owner.wait_ready(180)
    assert complete(owner)

    other.spec["pod"] |= {"nodeSelector": {HOST: "gpu-0"}}
    other.spec["replicas"] = 1
    other.apply()
    other.wait_for("told", lambda: "org/m is gated" in other.condition("ModelReady").get("message", ""), 90)
    assert other.condition("Ready")["status"] == "False"
    assert find_weights(owner) == ["model.safetensors"]
    assert find_weights(other) == []
    assert count_downloads(hub) < 1.5


def find_weights(service: Service) -> list[str]:
    """Return the weights that a pod of the namespace's own finds among what the node keeps for it."""
    line = "find /models -name '*.safetensors'; echo looked"
    run_reader(service.cluster, service.namespace, READER, line, node="gpu-0", labels={})
    said = partial(service.kubectl, "logs", READER)
    wait_until("a look", lambda: "looked" in said(), 60, outlives=(PartFailedError,))
    return [line.rpartition("/")[2] for line in said().splitlines() if line != "looked"]
