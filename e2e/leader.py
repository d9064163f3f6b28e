"""The operator that leads: who it is, and its death without a word."""

import json

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE
from e2e.host_processes import kill_pod_processes


def find_leader(cluster: LocalCluster) -> str:
    """Return the name of the pod that holds the Lease; empty where none does."""
    lease = cluster.kubectl("-n", NAMESPACE, "get", "lease", "millrace-operator", "-o", "json")
    return str(json.loads(lease)["spec"].get("holderIdentity") or "").partition("_")[0]


def kill_leader(cluster: LocalCluster) -> str:
    """Kill the operator that leads, and return its pod's name. Its Lease stays until it runs out."""
    leader = find_leader(cluster)
    pod = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pod", leader, "-o", "json"))
    assert kill_pod_processes(pod) > 0
    # Were its container restarted in place, it would hold the Lease still, under the same name.
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", leader, "--force", "--grace-period=0")
    return leader
