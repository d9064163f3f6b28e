"""Models on the nodes' own disks: the chart's node cache, beside pods that read models as replicas do."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.api_client import RefusedError, create, delete, patch_with_token
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE
from e2e.namespaces import create_namespace, path_of
from e2e.node_cache import run_reader, running_node_cache
from e2e.node_disks import find_on_disk, make_on_disk
from millrace_runtime import contract
from testing.polling import wait_until

Object = dict[str, Any]
ROOT = "/mnt/node-cache"
"""Of this test alone: it begins without it."""
SHOP = "node-cache-shop"
NODES = ("cpu-0", "gpu-0")
MIB = 1 << 20


@dataclass(frozen=True)
class NodeCache:
    """The node cache on a cluster, for one namespace."""

    cluster: LocalCluster

    def names(self, model: str) -> str:
        return contract.name_kept(SHOP, f"{contract.FOLDER_KEPT}/{model}")

    def folder(self, node: str, model: str) -> Path:
        return find_on_disk(self.cluster, node, f"{ROOT}/{SHOP}/{contract.FOLDER_KEPT}/{model}")

    def put(self, node: str, model: str) -> None:
        """Leave a model there as a pod that has fetched it and is gone, between two looks of the agent."""
        folder = find_on_disk(self.cluster, node, f"/mnt/{model}")
        own = folder / ".millrace"
        own.mkdir(parents=True)
        (own / "lock").touch()
        (folder / "model.safetensors").write_bytes(bytes(2 * MIB))
        (own / "manifest.json").write_text(json.dumps(make_marker()))
        folder.rename(self.folder(node, model))

    def labels(self, node: str) -> dict[str, str]:
        labels = self.node(node)["metadata"]["labels"]
        return {name: value for name, value in labels.items() if name.startswith(contract.LABEL_KEPT_ON_NODE)}

    def node(self, name: str) -> Object:
        return self.cluster.api.get(f"/api/v1/nodes/{name}")

    def agents(self) -> list[Object]:
        selector = "millrace.dev/component=node-cache"
        return self.cluster.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods", selector)

    def agent_of(self, node: str) -> str:
        (pod,) = [pod for pod in self.agents() if pod["spec"]["nodeName"] == node]
        name: str = pod["metadata"]["name"]
        return name

    def run(self, name: str, node: str, line: str, model: str) -> None:
        """Run a pod that reads a model, as restricted as a replica's."""
        labels = {contract.LABEL_KEPT: self.names(model)}
        run_reader(self.cluster, SHOP, name, line, node=node, labels=labels)


def make_marker() -> Object:
    record = {"size_bytes": 2 * MIB, "sha256": "", "identity": None}
    return {"source": "hf://org/m", "revision": "1", "include": [], "files": {"model.safetensors": record}}


@pytest.fixture(scope="module")
def cache(product: LocalCluster) -> Iterator[NodeCache]:
    create_namespace(product, SHOP)
    found = NodeCache(product)
    settings = (f"nodeCache.path={ROOT}", "nodeCache.limit=3Mi")
    with running_node_cache(product, SHOP, *settings, flags=("--look-seconds", "2")):
        wait_until("the root is missed", lambda: is_root_missed(product))
        for node in NODES:
            make_on_disk(product, node, ROOT)
        product.kubectl(
            *("-n", NAMESPACE, "rollout", "status", "daemonset/millrace-node-cache", "--timeout=90s")
        )
        yield found
    delete(product, path_of(SHOP))


def is_root_missed(cluster: LocalCluster) -> bool:
    """Whether an event of a pod says so."""
    events = cluster.api.list(f"{path_of(NAMESPACE)}/events")
    return any(f'path "{ROOT}" does not exist' in event["message"] for event in events)


def test_a_pod_has_its_nodes_folder_and_the_node_tells_what_is_whole(cache: NodeCache) -> None:
    marker = json.dumps(make_marker())
    fetch = (
        "d=/models/millrace/first; mkdir -p $d/.millrace; cd $d; touch .millrace/lock; "
        f"head -c {2 * MIB} /dev/zero > model.safetensors; echo '{marker}' > .millrace/manifest.json; "
        "sleep 600"
    )
    cache.run("first", "cpu-0", fetch, "first")
    label = f"{contract.LABEL_KEPT_ON_NODE}{cache.names('first')}"
    wait_until("the label", lambda: cache.labels("cpu-0") == {label: str(2 * MIB)})
    assert (cache.folder("cpu-0", "first") / "model.safetensors").exists()
    assert not cache.folder("gpu-0", "first").exists()
    assert cache.labels("gpu-0") == {}

    # Too much for the limit: what the pod reads stays, also by a new process, and goes after the pod.
    cache.put("cpu-0", "second")
    wait_until("the eviction", lambda: not cache.folder("cpu-0", "second").exists())
    assert cache.folder("cpu-0", "first").exists()
    cache.cluster.kubectl("-n", NAMESPACE, "delete", "pod", cache.agent_of("cpu-0"))
    assert cache.labels("cpu-0") == {label: str(2 * MIB)}
    cache.put("cpu-0", "third")
    wait_until("the eviction by the next", lambda: not cache.folder("cpu-0", "third").exists(), 90)
    cache.cluster.kubectl("-n", SHOP, "delete", "pod", "first")
    cache.put("cpu-0", "fourth")
    wait_until("the eviction of what was read", lambda: not cache.folder("cpu-0", "first").exists())
    assert cache.folder("cpu-0", "fourth").exists()
    fourth = f"{contract.LABEL_KEPT_ON_NODE}{cache.names('fourth')}"
    wait_until("the labels after it", lambda: set(cache.labels("cpu-0")) == {fourth})


def patch(cache: NodeCache, node: str, body: Object, *, agent: str | None) -> None:
    """Patch a Node with a token of the node cache: of the pod `agent`, or of no pod. Raises RefusedError."""
    bound = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": agent}} if agent else {}
    path = f"{path_of(NAMESPACE)}/serviceaccounts/millrace-node-cache/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
    token = create(cache.cluster, path, request)["status"]["token"]
    patch_with_token(cache.cluster, f"/api/v1/nodes/{node}", body, token)


def metadata(**fields: Any) -> Object:
    return {"metadata": fields}


OURS = metadata(labels={f"{contract.LABEL_KEPT_ON_NODE}0000": "1"})
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
REFUSED = {
    "another's label": (metadata(labels={"example.com/x": "1"}), "labels that begin with"),
    "a label is changed": (metadata(labels={"kubernetes.io/os": "plan9"}), "labels that begin with"),
    "a label is removed": (metadata(labels={"kubernetes.io/os": None}), "labels that begin with"),
    "an annotation": (metadata(annotations={"x": "y"}), "nothing of a node but its labels"),
    "a finalizer": (metadata(finalizers=["example.com/x"]), "nothing of a node but its labels"),
    "an owner": (metadata(ownerReferences=[OWNER]), "nothing of a node but its labels"),
    "cordoned": ({"spec": {"unschedulable": True}}, "nothing of a node but its labels"),
    "a taint": (
        {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}},
        "nothing of a node but its labels",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nothing_else_of_the_node_can_be_changed(cache: NodeCache, what: str) -> None:
    body, message = REFUSED[what]
    with pytest.raises(RefusedError, match=message):
        patch(cache, "gpu-0", body, agent=cache.agent_of("gpu-0"))


def test_no_other_node_can_be_labelled(cache: NodeCache) -> None:
    for agent in (cache.agent_of("cpu-0"), None):
        with pytest.raises(RefusedError, match="the node of its own pod alone"):
            patch(cache, "gpu-0", OURS, agent=agent)
    patch(cache, "gpu-0", OURS, agent=cache.agent_of("gpu-0"))
    # It is of no model, so that the next look removes it.
    wait_until("the label is gone", lambda: cache.labels("gpu-0") == {})


def test_a_nodes_status_is_out_of_reach(cache: NodeCache) -> None:
    with pytest.raises(RefusedError, match="403"):
        patch(cache, "gpu-0/status", {"status": {"phase": "x"}}, agent=cache.agent_of("gpu-0"))
