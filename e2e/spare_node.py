"""A Node with a process of its own, so that it can be lost and the others stay."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.api_client import delete
from e2e.cluster.api_reader import has_condition
from e2e.cluster.local_cluster import LocalCluster, nodes_command
from testing.polling import wait_until

NAME = "spare"
TAINT = "millrace-test/no-room"


@dataclass(frozen=True)
class SpareNode:
    """The Node while it lives, and once it is lost."""

    cluster: LocalCluster

    @property
    def is_ready(self) -> bool:
        """Whether the control plane has heard of it lately."""
        found = self.cluster.api.list("/api/v1/nodes")
        return any(node["metadata"]["name"] == NAME and has_condition(node, "Ready") for node in found)

    @contextmanager
    def taking_all(self) -> Iterator[None]:
        """Let whatever is scheduled inside go to this node. Nothing that runs elsewhere is moved."""
        others = [
            node["metadata"]["name"]
            for node in self.cluster.api.list("/api/v1/nodes")
            if node["metadata"]["name"] != NAME
        ]
        self.cluster.kubectl("taint", "nodes", *others, f"{TAINT}=yes:NoSchedule")
        try:
            yield
        finally:
            self.cluster.kubectl("taint", "nodes", *others, f"{TAINT}-")

    def lose(self) -> None:
        """Kill it: its pods die with it, and nobody says so to the API server."""
        self.cluster.processes.kill(NAME)


@contextmanager
def run_spare_node(cluster: LocalCluster, state: Path) -> Iterator[SpareNode]:
    """Yield the Node once it is Ready. In the end it is gone, and so are its object and its pods."""
    command = nodes_command(cluster.layout, (f"name={NAME},cpu=4,memory=8Gi",))
    words = [str(state) if word == str(cluster.layout.nodes) else word for word in command.words]
    cluster.processes.start(NAME, words, command.environment)
    node = SpareNode(cluster)
    try:
        wait_until("the spare node", lambda: node.is_ready)
        yield node
    finally:
        cluster.processes.stop(NAME)
        delete(cluster, f"/api/v1/nodes/{NAME}")
        _forget_pods(cluster)


def _forget_pods(cluster: LocalCluster) -> None:
    """Delete its pods at once: nobody says that they have ended, and what they use is held until then."""
    for pod in cluster.api.list("/api/v1/pods"):
        if pod["spec"].get("nodeName") == NAME:
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            delete(cluster, path, gracePeriodSeconds=0)
