"""The Jobs of a service: they ask a model's source, look at a model in a claim, or fetch one. Pure."""

from typing import Any

from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import JOB, Obj
from millrace_operator.model.found_model import FoundModel
from millrace_operator.render.child import account_name, fill_name, render_child, revision_name
from millrace_operator.render.model_source import (
    render_filler,
    render_looker,
    render_model_volumes,
    render_resolver,
    render_secret_volumes,
    render_writable_volume,
)
from millrace_operator.render.pod_template import POD_SECURITY, SCRATCH, SECURITY
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract

TRIES = 2**31 - 1
"""As many as possible. The kubelet waits up to five minutes before each, and the cause may go."""
_RESOLVER_PLACEMENT = {"image_pull_secrets", "tolerations"}
"""How its image is pulled, and which taints it tolerates: all nodes may have those of GPUs."""
_LOOKER_PLACEMENT = {*_RESOLVER_PLACEMENT, "node_selector", "priority_class_name"}
"""Where the replicas run: only their nodes may have the claim's folder. The priority is theirs, too, so that
the scheduler evicts no replica for the Job.
"""
_FILLER_PLACEMENT = {"image_pull_secrets", "tolerations", "node_selector"}
"""As for the replicas: the first pod of a claim may decide the zone of its volume."""


def render_resolve_job(settings: RenderSettings, service: Obj, spec: Spec, revision: str) -> Obj:
    """Return the Job that asks the model's source. The status of its pod has the result."""
    parts = {
        "containers": [render_resolver(settings, spec, SECURITY, SCRATCH)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *render_secret_volumes(spec)],
    }
    template = render_job_template(service, spec, contract.COMPONENT_RESOLVER, _RESOLVER_PLACEMENT, parts)
    return render_job(service, revision_name(service, revision), revision, template)


def render_look_job(settings: RenderSettings, service: Obj, spec: Spec, revision: str) -> Obj:
    """Return the Job that looks at a model in a claim, which it mounts as the replicas do."""
    parts = {
        "containers": [render_looker(settings, spec, SECURITY, SCRATCH)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *render_model_volumes(spec.model)],
    }
    template = render_job_template(service, spec, contract.COMPONENT_RESOLVER, _LOOKER_PLACEMENT, parts)
    return render_job(service, revision_name(service, revision), revision, template)


def render_fill_job(
    settings: RenderSettings, service: Obj, spec: Spec, revision: str, found: FoundModel
) -> Obj:
    """Return the Job that fetches the model into a claim."""
    parts = {
        "containers": [render_filler(settings, spec, found, SECURITY, SCRATCH)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            render_writable_volume(spec.model),
            *render_secret_volumes(spec),
        ],
    }
    template = render_job_template(service, spec, contract.COMPONENT_FILLER, _FILLER_PLACEMENT, parts)
    return render_job(service, fill_name(service, revision), revision, template)


def render_job_template(
    service: Obj, spec: Spec, component: str, placement: set[str], parts: dict[str, Any]
) -> Obj:
    """Return the template of a Job's pod. `parts` are its containers and volumes.

    `placement` are the fields of `spec.pod` that say how its image is pulled and where it may run.
    """
    own = {contract.LABEL_SERVICE: service["metadata"]["name"], contract.LABEL_COMPONENT: component}
    dumped = spec.pod.model_dump(by_alias=True, exclude_none=True, include=placement)
    return {
        "metadata": {"labels": {**spec.pod.labels, **own}, "annotations": spec.pod.annotations},
        "spec": {
            "restartPolicy": "OnFailure",
            "serviceAccountName": spec.pod.service_account_name or account_name(service),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": POD_SECURITY,
            **{field: value for field, value in dumped.items() if value},
            **parts,
        },
    }


def render_job(service: Obj, name: str, revision: str, template: Obj) -> Obj:
    """Return a Job of a service's revision, which repeats its attempts."""
    return {
        **render_child(service, JOB, name, {contract.LABEL_REVISION: revision}),
        "spec": {"backoffLimit": TRIES, "template": template},
    }
