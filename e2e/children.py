"""What the operator makes for a service, its pods left out, read without a kubectl."""

from typing import Any

from e2e.cluster.local_cluster import LocalCluster
from millrace_runtime.contract import LABEL_SERVICE

COLLECTIONS = (
    "apis/apps/v1/{}/deployments",
    "apis/apps/v1/{}/controllerrevisions",
    "api/v1/{}/services",
    "api/v1/{}/serviceaccounts",
    "apis/policy/v1/{}/poddisruptionbudgets",
    "apis/batch/v1/{}/jobs",
)
Object = dict[str, Any]


def list_children(cluster: LocalCluster, namespace: str, service: str) -> list[Object]:
    """Return whatever has the service's label, with the name of its collection as `kind`."""
    paths = (f"/{path.format(f'namespaces/{namespace}')}" for path in COLLECTIONS)
    return [
        {**found, "kind": path.rpartition("/")[2]}
        for path in paths
        for found in cluster.api.list(path, f"{LABEL_SERVICE}={service}")
    ]
