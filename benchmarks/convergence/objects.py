"""The objects of the benchmark: services, pods of theirs, and objects that are nobody's of ours."""

from collections.abc import Iterator

from benchmarks.convergence.api import Object
from millrace_runtime import contract

NAMESPACE = "bench"
SERVICES = f"/apis/millrace.dev/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CHILD_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


def name_service(number: int) -> str:
    """Return the name of a service."""
    return f"chat-{number}"


def make_services(count: int) -> Iterator[Object]:
    """Yield services of one replica. Who scales them is outside, so no Prometheus is asked for."""
    for number in range(count):
        yield {
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name_service(number), "namespace": NAMESPACE},
            "spec": {
                "model": {"uri": "file:///models/stories"},
                "replicas": 1,
                "scaling": {"mode": "External"},
            },
        }


def make_pod(service: Object) -> Object:
    """Return a pod of a service's current revision, as its ReplicaSet would make it."""
    name, revision = service["metadata"]["name"], service["status"]["updateRevision"]
    labels = {
        contract.LABEL_SERVICE: name,
        contract.LABEL_REVISION: revision,
        "millrace.dev/component": "replica",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-{revision}-0", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "serviceAccountName": f"{name}-replica",
            "automountServiceAccountToken": False,
            "containers": [{"name": contract.CONTAINER_REPLICA, "image": "replica"}],
        },
    }


READY = {
    "status": {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": contract.CONTAINER_REPLICA,
                "image": "replica",
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
        ],
    }
}


def make_strangers(count: int) -> Iterator[Object]:
    """Yield Deployments that have nothing to do with us."""
    for number in range(count):
        labels = {"app": f"other-{number}"}
        container = {"name": "main", "image": "other", "env": [{"name": "PADDING", "value": "x" * 500}]}
        yield {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"other-{number}", "namespace": NAMESPACE, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }
