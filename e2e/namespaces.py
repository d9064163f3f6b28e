"""A namespace as a careful platform team makes it: restricted pods, quotas, and bounds for each container."""

import json
from pathlib import Path

from e2e.cluster.local_cluster import LocalCluster
from e2e.polling import wait_until

LIMITS = Path(__file__).with_name("limits.yaml")


def create_namespace(cluster: LocalCluster, name: str) -> None:
    """Make one, and wait until its quota is in force: before that it refuses all that it counts."""
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    cluster.kubectl("apply", "-n", name, "-f", str(LIMITS))
    wait_until("the quota", lambda: is_quota_known(cluster, name))


def is_quota_known(cluster: LocalCluster, namespace: str) -> bool:
    """Whether the control plane has counted everything that the quota bounds."""
    quota = json.loads(cluster.kubectl("get", "resourcequota", "team", "-n", namespace, "-o", "json"))
    return bool(quota["spec"]["hard"].keys() == quota.get("status", {}).get("used", {}).keys())
