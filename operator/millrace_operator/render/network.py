"""Names under which a service and its replicas are reached, and the replicas' own identity."""

from millrace_operator.kube.kinds import SERVICE, SERVICE_ACCOUNT, Obj
from millrace_operator.render.metadata import (
    account_name,
    headless_name,
    render_child,
    replica_labels,
)
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract


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
