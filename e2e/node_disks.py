"""The process nodes' own disks, on which an administrator makes the folder of the node cache."""

from pathlib import Path
from typing import Any

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.nodes.settings import disk_of


def find_on_disk(cluster: LocalCluster, node: str, path: str) -> Path:
    """Return where a path of a node's disk is on this machine."""
    return disk_of(cluster.layout.nodes, node) / path.lstrip("/")


def make_on_disk(cluster: LocalCluster, node: str, path: str) -> Path:
    """Make a folder on a node's disk, as who mounts a disk there does."""
    folder = find_on_disk(cluster, node, path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def find_volume(cluster: LocalCluster, pod: dict[str, Any], name: str) -> Path:
    """Return where a pod's volume of its own, such as an emptyDir, is on this machine."""
    return cluster.layout.nodes / "pods" / str(pod["metadata"]["uid"]) / "volumes" / name
