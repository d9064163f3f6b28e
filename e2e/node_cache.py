"""The chart's node cache on the local cluster, for some namespaces, while it is entered."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE, install_chart

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
def running_node_cache(cluster: LocalCluster, namespace: str, *settings: str) -> Iterator[None]:
    """Install it, and in the end remove what is in no namespace of the test's own. `settings` are helm's."""
    try:
        install_chart(cluster, f"nodeCache.namespaces={{{namespace}}}", *settings)
        yield
    finally:
        remove = ("delete", "--ignore-not-found", "--wait=false")
        cluster.kubectl("-n", NAMESPACE, *remove, *OWN)
        cluster.kubectl("-n", namespace, *remove, "pvc/millrace-models")
        cluster.kubectl(*remove, f"pv/millrace-models-{namespace}")
        # The next one makes them anew, and is not to meet these on their way out. A pod of a node that is
        # gone holds its claim until Kubernetes forgets it, which takes a minute.
        cluster.kubectl("wait", "--for=delete", "--timeout=180s", "pv/millrace-node-cache")
