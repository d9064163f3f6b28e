"""What the operator may do, asked of the real API server in the operator's name."""

import pytest

from e2e.api_client import RefusedError, create, patch
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE
from e2e.namespaces import path_of
from e2e.service import Service
from millrace_operator.observed.pods import DELETION_COST
from millrace_runtime.contract import GROUP, PLURAL, SECRET_GATEWAY_KEY

READS = ("get", "list", "watch")
OPERATOR = f"system:serviceaccount:{NAMESPACE}:millrace-operator"


MAY = (
    *(f"{verb} nodes" for verb in READS),
    "patch inferenceservices/status",
    "patch inferenceservices/scale",
    "patch pods/status",
    *(f"{verb} secrets:{SECRET_GATEWAY_KEY}" for verb in ("get", "create", "patch")),
)
MAY_NOT = (
    "patch nodes",
    "delete nodes",
    "get secrets",
    "list secrets",
    "create secrets",
    f"delete secrets:{SECRET_GATEWAY_KEY}",
    "create pods/exec",
    "delete pods",
    "update inferenceservices",
    "patch inferenceservices",
)


def is_allowed(cluster: LocalCluster, what: str) -> bool:
    """Whether the operator may do this in its own namespace, where it has the most rights."""
    verb, _, path = what.partition(" ")
    path, _, name = path.partition(":")
    resource, _, subresource = path.partition("/")
    group = GROUP if resource == PLURAL else ""
    asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}
    review = {"spec": {"resourceAttributes": {**asked, "namespace": NAMESPACE}}}
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    allowed: bool = create(cluster, reviews, review, user=OPERATOR)["status"]["allowed"]
    return allowed


def test_it_may_do_what_it_needs_and_reads_one_secret_and_deletes_no_pod(product: LocalCluster) -> None:
    told = {what: is_allowed(product, what) for what in (*MAY, *MAY_NOT)}
    assert told == dict.fromkeys(MAY, True) | dict.fromkeys(MAY_NOT, False)


def test_it_can_mark_a_pod_and_change_nothing_that_the_pod_runs(service: Service) -> None:
    service.apply()
    service.wait_for("a pod", lambda: len(service.pods()) == 1)
    (pod,) = service.pods()
    path = f"{path_of(service.namespace)}/pods/{pod['metadata']['name']}"
    container = pod["spec"]["containers"][0]
    forged = {"spec": {"containers": [{**container, "image": "example.com/forged:1"}]}}
    mark = {"metadata": {"annotations": {DELETION_COST: "-100"}}}

    with pytest.raises(RefusedError, match="403"):
        patch(service.cluster, path, forged, user=OPERATOR)
    after = patch(service.cluster, f"{path}/status", {**mark, **forged}, user=OPERATOR)
    assert after["metadata"]["annotations"][DELETION_COST] == "-100"
    assert after["spec"]["containers"][0]["image"] == container["image"]
