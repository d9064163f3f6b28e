"""The children that are not Jobs: Services, ServiceAccount, Deployment, its record, the budget. Pure."""

from millrace_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    Obj,
)
from millrace_operator.render.child import (
    account_name,
    headless_name,
    render_child,
    replica_labels,
    revision_name,
)
from millrace_operator.render.settings import RenderSettings
from millrace_operator.rollout.revision import Revision
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


def render_deployment(service: Obj, revision: Revision, replicas: int) -> Obj:
    """Return a revision's Deployment. Its template never changes: another one is another revision."""
    name = revision_name(service, revision.hash)
    labels = {contract.LABEL_REVISION: revision.hash}
    return {
        **render_child(service, DEPLOYMENT, name, labels),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": {**replica_labels(service), **labels}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": revision.template,
        },
    }


def render_controller_revision(service: Obj, revision: Revision) -> Obj:
    """Return the record from which a revision can be rebuilt: its inputs and its pods' template."""
    name = revision_name(service, revision.hash)
    labels = {contract.LABEL_REVISION: revision.hash}
    if revision.is_pending is not None:  # records of earlier versions have no such label
        labels[contract.LABEL_PENDING] = "true" if revision.is_pending else "false"
    return {
        **render_child(service, CONTROLLER_REVISION, name, labels),
        "revision": revision.number,
        "data": _render_record(revision),
    }


def _render_record(revision: Revision) -> Obj:
    record: Obj = {"inputs": revision.inputs}
    if not revision.is_pending:  # an operator of another version may make it
        record["template"] = revision.template
    if revision.model is not None:
        record["model"] = revision.model.render()
    return record if revision.cached is None else {**record, "cache": revision.cached.render()}


def render_disruption_budget(service: Obj, placed: int, *, holds_last: bool) -> Obj:
    """Return the budget over the replicas of all revisions: at least all but one have to serve.

    `placed` are the desired replicas without those that wait in vain for a node, or whose pods are refused.
    Such a replica is not healthy, and would use up the allowed disruptions: no node of a full cluster could
    be drained.

    With a single replica the budget allows the eviction, or the node could never be drained, unless a
    replacement is on its way (`holds_last`): `kubectl drain` asks again every 5 s. A pod that is not Ready
    never blocks a drain.
    """
    return {
        **render_child(service, POD_DISRUPTION_BUDGET, service["metadata"]["name"]),
        "spec": {
            "minAvailable": max(1 if holds_last else 0, placed - 1),
            "selector": {"matchLabels": replica_labels(service)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
