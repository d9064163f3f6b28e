"""The chart's node cache on the local cluster, for some namespaces, while it is entered, and its readers."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE, install_chart
from millrace_runtime.contract import CLAIM_KEPT

ROOT = "/var/lib/millrace-models"
"""On the nodes: the chart's default."""
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
    cluster: LocalCluster, namespace: str, *settings: str, beside: tuple[str, ...] = ()
) -> Iterator[None]:
    """Install it, and in the end remove what is in no namespace of the test's own. `settings` are helm's.

    It serves `namespace`, and those named in `beside`.
    """
    namespaces = (namespace, *beside)
    try:
        install_chart(cluster, f"nodeCache.namespaces={{{','.join(namespaces)}}}", *settings)
        yield
    finally:
        remove = ("delete", "--ignore-not-found", "--wait=false")
        cluster.kubectl("-n", NAMESPACE, *remove, *OWN)
        for one in namespaces:
            cluster.kubectl("-n", one, *remove, f"pvc/{CLAIM_KEPT}")
            cluster.kubectl(*remove, f"pv/{CLAIM_KEPT}-{one}")
        # The next one makes them anew, and is not to meet these on their way out. A pod of a node that is
        # gone holds its claim until Kubernetes forgets it, which takes a minute.
        cluster.kubectl("wait", "--for=delete", "--timeout=180s", "pv/millrace-node-cache")


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
