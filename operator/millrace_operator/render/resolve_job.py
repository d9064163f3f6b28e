"""The Jobs that find out about a model before a pod is made. Pure.

They ask its source, or look at it in its claim.
"""

from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.render.job import render_job, render_job_template
from millrace_operator.render.metadata import revision_name
from millrace_operator.render.model_source import (
    render_looker,
    render_model_volumes,
    render_resolver,
    render_secret_volumes,
)
from millrace_operator.render.pod_template import SCRATCH, SECURITY
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract

_PLACEMENT = {"image_pull_secrets", "tolerations"}
"""How its image is pulled, and which taints it tolerates: all nodes may have those of GPUs."""
_AS_REPLICAS = {*_PLACEMENT, "node_selector", "priority_class_name"}
"""Where the replicas run: the nodes of others may not have the claim's folder. And no more urgent than they
are, or it could have the scheduler evict one that serves."""


def render_resolve_job(settings: RenderSettings, service: Obj, spec: Spec, revision: str) -> Obj:
    """Return the Job. What it has found stands in the status of its pod."""
    parts = {
        "containers": [render_resolver(settings, spec, SECURITY, SCRATCH)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *render_secret_volumes(spec)],
    }
    template = render_job_template(service, spec, contract.COMPONENT_RESOLVER, _PLACEMENT, parts)
    return render_job(service, revision_name(service, revision), revision, template)


def render_look_job(settings: RenderSettings, service: Obj, spec: Spec, revision: str) -> Obj:
    """Return the Job that looks at a model in a claim, which is mounted as the replicas mount it."""
    parts = {
        "containers": [render_looker(settings, spec, SECURITY, SCRATCH)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *render_model_volumes(spec.model)],
    }
    template = render_job_template(service, spec, contract.COMPONENT_RESOLVER, _AS_REPLICAS, parts)
    return render_job(service, revision_name(service, revision), revision, template)
