"""The chart's node cache on the local cluster, for some namespaces, while it is entered, and its readers."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import yaml

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE, render_chart
from millrace_runtime.contract import CLAIM_KEPT
from testing.polling import wait_until

ROOT = "/var/lib/millrace-models"
"""On the nodes: the chart's default."""
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OWN = (
    "daemonset/millrace-node-cache",
    "validatingadmissionpolicybinding/millrace-node-cache",
    "validatingadmissionpolicy/millrace-node-cache",
    "clusterrolebinding/millrace-node-cache",
    "clusterrole/millrace-node-cache",
    "pvc/millrace-node-cache",
    "pv/millrace-node-cache",
)


@contextmanager
def running_node_cache(
    cluster: LocalCluster,
    namespace: str,
    *settings: str,
    beside: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> Iterator[None]:
    """Install it, and in the end remove what is in no namespace of the test's own. `settings` are helm's.

    It serves `namespace`, and those named in `beside`. `flags` are further ones of its agents.
    """
    namespaces = (namespace, *beside)
    # What another left is on its way out: its volume waits for the agents' end.
    wait_until("no other node cache", lambda: _is_gone(cluster), 180)
    try:
        _install(cluster, (f"nodeCache.namespaces={{{','.join(namespaces)}}}", *settings), flags)
        yield
    finally:
        remove = ("delete", "--ignore-not-found", "--wait=false")
        cluster.kubectl("-n", NAMESPACE, *remove, *OWN)
        for one in namespaces:
            cluster.kubectl("-n", one, *remove, f"pvc/{CLAIM_KEPT}")
            cluster.kubectl(*remove, f"pv/{CLAIM_KEPT}-{one}")


def _is_gone(cluster: LocalCluster) -> bool:
    volumes = cluster.api.list("/api/v1/persistentvolumes")
    return all(one["metadata"]["name"] != "millrace-node-cache" for one in volumes)


def _install(cluster: LocalCluster, settings: tuple[str, ...], flags: tuple[str, ...]) -> None:
    """Apply the chart, whose agents get further flags: it has no values for these."""
    objects = [obj for obj in yaml.load_all(render_chart(cluster, *settings), YAML_LOADER) if obj]
    (agents,) = [obj for obj in objects if obj["kind"] == "DaemonSet"]
    agents["spec"]["template"]["spec"]["containers"][0]["args"] += flags
    manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifests)


def run_reader(
    cluster: LocalCluster, namespace: str, name: str, line: str, *, node: str, labels: Mapping[str, str]
) -> None:
    """Run a shell's line in a pod that has its namespace's models of a node, as restricted as a replica's."""
    box = {
        "name": "main",
        "image": "shell:1",
        "args": [line],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [box],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": CLAIM_KEPT}}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
