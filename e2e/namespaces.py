"""A namespace as a careful platform team makes it: restricted pods, quotas, and bounds for each container."""

from pathlib import Path

import yaml

from e2e.api_client import create
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from testing.polling import wait_until

LIMITS = Path(__file__).with_name("limits.yaml")
_QUOTA_SECONDS = 300.0
"""Kubernetes' quota controller may be in a backoff: after an outage it once took more than a minute."""
COLLECTIONS = {"ResourceQuota": "resourcequotas", "LimitRange": "limitranges"}


def create_namespace(cluster: LocalCluster, name: str) -> None:
    """Make one, and wait until its quota and its ServiceAccount are there: no pod is admitted before."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    create(cluster, "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    for limits in yaml.safe_load_all(LIMITS.read_text()):
        create(cluster, f"{path_of(name)}/{COLLECTIONS[limits['kind']]}", limits)
    wait_until("the quota", lambda: is_quota_known(cluster, name), _QUOTA_SECONDS)
    wait_for_account(cluster, name)


def path_of(namespace: str) -> str:
    """Return where the API server has a namespace, and below it what is in it."""
    return f"/api/v1/namespaces/{namespace}"


def is_quota_known(cluster: LocalCluster, namespace: str) -> bool:
    """Whether the control plane has counted everything that the quota bounds."""
    quota = cluster.api.get(f"{path_of(namespace)}/resourcequotas/team")
    return bool(quota["spec"]["hard"].keys() == quota.get("status", {}).get("used", {}).keys())


def wait_for_account(cluster: LocalCluster, namespace: str) -> None:
    """Wait until the control plane has made the ServiceAccount of pods that name none."""
    path = f"{path_of(namespace)}/serviceaccounts/default"
    wait_until("the account", lambda: cluster.api.get(path), outlives=(PartFailedError,))
