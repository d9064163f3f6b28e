"""The operator that leads: who it is, and its death without a word."""

from e2e.api_client import delete
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE
from e2e.host_processes import kill_pod_processes


def find_leader(cluster: LocalCluster) -> str:
    """Return the name of the pod that holds the Lease; empty where none does."""
    lease = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/millrace-operator")
    return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]


def kill_leader(cluster: LocalCluster) -> str:
    """Kill the operator that leads, and return its pod's name. Its Lease stays until it runs out."""
    leader = find_leader(cluster)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{leader}"
    assert kill_pod_processes(cluster.api.get(path)) > 0
    # Were its container restarted in place, it would hold the Lease still, under the same name.
    delete(cluster, path, gracePeriodSeconds=0)
    return leader
