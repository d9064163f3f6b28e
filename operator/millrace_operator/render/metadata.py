"""Names, labels and owner of the children.

Names under which a service and its replicas are reached, and the replicas' own identity.
"""

from millrace_operator.kube.kinds import SERVICE, SERVICE_ACCOUNT, Kind, Obj
from millrace_operator.render.settings import RenderSettings
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


def render_service(settings: RenderSettings, service: Obj) -> Obj:
    """Return the Service of the service's own name: an alias of the gateway, which routes by Host."""
    return {
        **render_child(service, SERVICE, service["metadata"]["name"]),
        "spec": {
            "type": "ExternalName",
            "externalName": settings.gateway_service,
            "ports": [{"name": "http", "port": settings.gateway_port, "protocol": "TCP"}],
        },
    }


def render_headless_service(service: Obj) -> Obj:
    """Return the headless Service over all replicas."""
    return {
        **render_child(service, SERVICE, headless_name(service)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": replica_labels(service),
            "ports": [
                {
                    "name": contract.PORT_NAME_HTTP,
                    "port": contract.PORT_HTTP,
                    "targetPort": contract.PORT_NAME_HTTP,
                    "protocol": "TCP",
                }
            ],
        },
    }


def render_service_account(service: Obj) -> Obj:
    """Return the replicas' ServiceAccount, which may do nothing."""
    return {
        **render_child(service, SERVICE_ACCOUNT, account_name(service)),
        "automountServiceAccountToken": False,
    }
