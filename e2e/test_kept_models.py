"""Models that nodes keep on their own disks: one download a node, however many pods start together.

All tests of the file share a node cache on three nodes, and each asks for a commit of its own.
"""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from e2e.api_client import delete
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.nodes.settings import disk_of
from e2e.completion import complete
from e2e.fetched_models import wait_for_models
from e2e.model_servers import count_downloads, read_stories
from e2e.namespaces import create_namespace, path_of
from e2e.node_cache import ROOT, run_reader, running_node_cache
from e2e.node_disks import make_on_disk
from e2e.plugin import ask_namespace
from e2e.service import Service
from e2e.spare_node import NAME as SPARE
from e2e.spare_node import SpareNode, run_spare_node
from millrace_runtime.contract import LABEL_KEPT_ON_NODE, name_kept
from testing.model_sources.servers import FakeHub
from testing.polling import wait_until

HOST = "kubernetes.io/hostname"
NAMESPACE, OTHER = "kept-models", "kept-models-other"
READER = "reader"
TOKEN = "a-secret-of-the-team"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def spare(product: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpareNode]:
    """A third node, with a node cache on all of them that looks often."""
    folder = tmp_path_factory.mktemp(SPARE)
    (disk_of(folder, SPARE) / ROOT.lstrip("/")).mkdir(parents=True)
    for other in ("gpu-0", "cpu-0"):
        make_on_disk(product, other, ROOT)
    for namespace in (NAMESPACE, OTHER):
        create_namespace(product, namespace)
    agents = running_node_cache(product, NAMESPACE, beside=(OTHER,), flags=("--look-seconds", "2"))
    with agents, run_spare_node(product, folder) as node:
        yield node
    for namespace in (NAMESPACE, OTHER):
        delete(product, path_of(namespace))


@pytest.fixture
def hub(hub: FakeHub) -> FakeHub:
    """A Hub with a commit of the test's own, which no node keeps yet."""
    hub.move_on(f"{next(_numbers):040x}", read_stories())
    return hub


@pytest.fixture
def kept(spare: SpareNode, hub: FakeHub) -> Iterator[Service]:
    """A service whose model the nodes keep, of many small replicas, not yet applied."""
    found = build(spare.cluster, NAMESPACE, hub)
    yield found
    found.discard()


@pytest.fixture
def neighbours(kept: Service, hub: FakeHub) -> Iterator[tuple[Service, Service]]:
    """Services of two namespaces that ask for one model, not yet applied."""
    other = build(kept.cluster, OTHER, hub)
    yield kept, other
    other.discard()


def build(cluster: LocalCluster, namespace: str, hub: FakeHub) -> Service:
    """Return a service whose model the nodes keep."""
    found = Service(cluster, namespace, f"kept-{next(_numbers)}")
    found.spec["model"] = {"uri": f"hf://org/m@{hub.commit}", "cache": {"type": "NodeLocal"}}
    found.spec["pod"] = {"env": [{"name": "HF_ENDPOINT", "value": hub.endpoint}]}
    found.spec["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    found.spec["scaling"] = {"mode": "External"}
    return found


def start(service: Service, count: int, **placement: Any) -> set[str]:
    """Apply it, wait until so many pods have their model, and return their nodes."""
    service.spec["pod"] |= placement
    service.spec["replicas"] = count
    service.apply()
    wait_for_models(service, count)
    return {pod["spec"]["nodeName"] for pod in service.pods()}


def find_keepers(service: Service) -> set[str]:
    """Return the nodes whose labels say that they have the model."""
    path = service.status()["model"]["cache"]["path"]
    label = f"{LABEL_KEPT_ON_NODE}{name_kept(service.namespace, path)}"
    nodes = service.cluster.api.list("/api/v1/nodes")
    return {node["metadata"]["name"] for node in nodes if label in node["metadata"]["labels"]}


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
    kept.spec["replicas"] = 1  # ten take half a minute of CPU time to serve
    kept.apply()
    kept.wait_ready()
    assert complete(kept)
    assert kept.status()["model"]["cache"]["claimName"] == "millrace-models"


def test_each_of_three_nodes_downloads_it_once_and_later_pods_find_it_there(
    kept: Service, hub: FakeHub
) -> None:
    spread = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
    nodes = start(kept, 3, topologySpreadConstraints=[spread])
    assert nodes == {"gpu-0", "cpu-0", SPARE}
    assert 3 <= count_downloads(hub) < 3.5
    hub.large.bytes_per_second = 1  # a second download would take an hour
    wait_until("nodes labelled with it", lambda: find_keepers(kept) == nodes)
    assert "cpu-0, gpu-0, spare" in ask_namespace(kept, "models")
    start(kept, 6)
    assert 3 <= count_downloads(hub) < 3.5


def test_the_scheduler_prefers_the_node_that_has_the_model_to_nodes_that_have_no_replica(
    kept: Service, hub: FakeHub, spare: SpareNode
) -> None:
    """By itself it spreads the pods of a ReplicaSet, and the others have more room than the spare node."""
    with spare.taking_all():
        assert start(kept, 1) == {SPARE}
        wait_until("a node labelled with it", lambda: find_keepers(kept) == {SPARE})
    hub.large.bytes_per_second = 1  # a pod on another node would wait for an hour
    for count in (2, 3):
        kept.spec["replicas"] = count
        kept.apply()
        assert wait_for_nodes(kept, count) == [SPARE] * count
    wait_for_models(kept, 3)
    assert count_downloads(hub) < 1.5


@pytest.mark.long
def test_a_gated_model_that_a_node_keeps_for_one_namespace_is_out_of_reach_of_another(
    neighbours: tuple[Service, Service], hub: FakeHub
) -> None:
    hub.token = TOKEN
    owner, other = neighbours
    owner.kubectl("create", "secret", "generic", "hub", f"--from-literal=HF_TOKEN={TOKEN}")
    owner.spec["model"]["credentials"] = {"secretName": "hub"}
    assert start(owner, 1, nodeSelector={HOST: "gpu-0"}) == {"gpu-0"}
    owner.wait_ready()
    assert complete(owner)

    other.spec["pod"] |= {"nodeSelector": {HOST: "gpu-0"}}
    other.spec["replicas"] = 1
    other.apply()
    other.wait_for("told", lambda: "org/m is gated" in other.condition("ModelReady").get("message", ""))
    assert other.condition("Ready")["status"] == "False"
    assert find_weights(owner) == {"model.safetensors"}
    assert find_weights(other) == set()
    assert count_downloads(hub) < 1.5


def find_weights(service: Service) -> set[str]:
    """Return the weights that a pod of the namespace's own finds among what the node keeps for it."""
    line = "find /models -name '*.safetensors'; echo looked"
    run_reader(service.cluster, service.namespace, READER, line, node="gpu-0", labels={})
    said = partial(service.kubectl, "logs", READER)
    wait_until("a look", lambda: "looked" in said(), 60, outlives=(PartFailedError,))
    return {line.rpartition("/")[2] for line in said().splitlines() if line != "looked"}
