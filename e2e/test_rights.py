"""What the operator may do, asked of the real API server in the operator's name."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from e2e.cluster.controlplane import client_context
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE
from e2e.service import Service
from millrace_operator.reconcile.pods import DELETION_COST

READS = ("get", "list", "watch")
OPERATOR = f"system:serviceaccount:{NAMESPACE}:millrace-operator"


MAY = (
    *(f"{verb} nodes" for verb in READS),
    "patch inferenceservices.millrace.dev --subresource=status",
    "patch pods --subresource=status",
)
MAY_NOT = (
    "patch nodes",
    "delete nodes",
    "get secrets",
    "create pods --subresource=exec",
    "delete pods",
    "update inferenceservices.millrace.dev",
    "patch inferenceservices.millrace.dev",
)
"""Each with the words that kubectl takes: `pods/exec` would be a pod of the name exec."""


def is_allowed(cluster: LocalCluster, what: str) -> bool:
    """Whether the operator may do this in its own namespace, where it has the most rights."""
    try:
        told = cluster.kubectl("auth", "can-i", *what.split(), "-n", NAMESPACE, f"--as={OPERATOR}")
    except PartFailedError as error:  # kubectl ends with 1 where it says no, and then tells no error
        if "error" in str(error).lower():
            raise
        return False
    return told.strip() == "yes"


def test_it_may_do_what_it_needs_and_reads_no_secret_and_deletes_no_pod(product: LocalCluster) -> None:
    told = {what: is_allowed(product, what) for what in (*MAY, *MAY_NOT)}
    assert told == dict.fromkeys(MAY, True) | dict.fromkeys(MAY_NOT, False)


def patch_as_operator(service: Service, path: str, body: dict[str, Any]) -> None:
    """Send a merge patch, as the operator does. Raises HTTPError."""
    cluster = service.cluster
    headers = {"Content-Type": "application/merge-patch+json", "Impersonate-User": OPERATOR}
    request = urllib.request.Request(
        f"{cluster.api_url}{path}", json.dumps(body).encode(), headers, method="PATCH"
    )
    context = client_context(cluster.layout.keys, "ca", "admin")
    with urllib.request.urlopen(request, timeout=10, context=context):
        pass


def test_it_can_mark_a_pod_and_change_nothing_that_the_pod_runs(service: Service) -> None:
    service.apply()
    service.wait_ready()
    (pod,) = service.pods()
    path = f"/api/v1/namespaces/{service.namespace}/pods/{pod['metadata']['name']}"
    container = pod["spec"]["containers"][0]
    forged = {"spec": {"containers": [{**container, "image": "example.com/forged:1"}]}}
    mark = {"metadata": {"annotations": {DELETION_COST: "-100"}}}

    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        patch_as_operator(service, path, forged)
    refused.value.close()
    patch_as_operator(service, f"{path}/status", {**mark, **forged})

    (after,) = service.pods()
    assert after["metadata"]["annotations"][DELETION_COST] == "-100"
    assert after["spec"]["containers"][0]["image"] == container["image"]
