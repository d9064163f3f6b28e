"""Names, labels and owner of the children."""

from millrace_operator.kube.kinds import Kind, Obj
from millrace_runtime import contract


def headless_name(service: Obj) -> str:
    """Name of the headless Service over the replicas."""
    return f"{service['metadata']['name']}-replicas"


def account_name(service: Obj) -> str:
    """Name of the ServiceAccount that the operator makes for the replicas."""
    return f"{service['metadata']['name']}-replica"


def revision_name(service: Obj, revision: str) -> str:
    """Name of a revision's Deployment and ControllerRevision, and of the Job that asks for its model."""
    return f"{service['metadata']['name']}-{revision}"


def fill_name(service: Obj, revision: str) -> str:
    """Name of the Job that fetches a revision's model into a claim: 63 letters at most, as a Job's is."""
    return f"{revision_name(service, revision)}-f"


def replica_labels(service: Obj) -> dict[str, str]:
    """Labels that select all replicas of a service."""
    return {
        contract.LABEL_SERVICE: service["metadata"]["name"],
        contract.LABEL_COMPONENT: contract.COMPONENT_REPLICA,
    }


def render_child(service: Obj, kind: Kind, name: str, labels: dict[str, str] | None = None) -> Obj:
    """Return the head of a child: its kind, name, labels and owner. The parent's labels are never copied."""
    metadata = service["metadata"]
    owner = {
        "apiVersion": f"{contract.GROUP}/{contract.VERSION}",
        "kind": contract.KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {
                contract.LABEL_SERVICE: metadata["name"],
                "app.kubernetes.io/managed-by": "millrace",
                **(labels or {}),
            },
            "ownerReferences": [owner],
        },
    }
