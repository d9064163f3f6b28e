"""The Jobs that find out about a model before a pod is made, or keep what was found. Pure.

They ask its source, or look at it in its claim.
"""

from typing import Any

from millrace_operator.cluster.kinds import Obj
from millrace_operator.reconcile.asking import Asker
from millrace_operator.reconcile.found_model import FoundModel
from millrace_operator.reconcile.render.job import keep_found, render_job, render_job_template
from millrace_operator.reconcile.render.metadata import revision_name, told_name
from millrace_operator.reconcile.render.model_source import (
    render_looker,
    render_model_volumes,
    render_resolver,
    render_secret_volumes,
)
from millrace_operator.reconcile.render.pod_template import SCRATCH, SECURITY
from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.resources.types import Spec
from millrace_runtime import contract

_PLACEMENT = {"image_pull_secrets", "tolerations"}
"""How its image is pulled, and which taints it tolerates: all nodes may have those of GPUs."""
_AS_REPLICAS = {*_PLACEMENT, "node_selector", "priority_class_name"}
"""Where the replicas run: the nodes of others may not have the claim's folder. And no more urgent than they
are, or it could have the scheduler evict one that serves."""


def render_resolve_job(
    settings: RenderSettings,
    service: Obj,
    spec: Spec,
    revision: str,
    *,
    asker: Asker | None = None,
) -> Obj:
    """Return the Job. What it has found stands in the status of its pod."""
    asker = asker or Asker(revision_name(service, revision))
    parts = {
        "containers": [render_resolver(settings, spec, SECURITY, SCRATCH)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *render_secret_volumes(spec)],
    }
    template = render_job_template(service, spec, contract.COMPONENT_RESOLVER, _PLACEMENT, parts)
    job = render_job(service, asker.name, revision, template)
    asks = {"annotations": {contract.ANNOTATION_ASKS: str(asker.number)}} if asker.number else {}
    return {**job, "metadata": {**job["metadata"], **asks}}


def render_look_job(settings: RenderSettings, service: Obj, spec: Spec, revision: str) -> Obj:
    """Return the Job that looks at a model in a claim, which is mounted as the replicas mount it."""
    looker = render_looker(settings, spec, SECURITY, SCRATCH)
    template = _render_look_template(service, spec, looker, render_model_volumes(spec.model))
    return render_job(service, revision_name(service, revision), revision, template)


def render_told_job(
    settings: RenderSettings, service: Obj, spec: Spec, revision: str, found: FoundModel
) -> Obj:
    """Return the Job that keeps what a look told of a model which no pod can serve.

    The pod of the look holds the claim even when it has ended, and what it told goes with it. This Job never
    has a pod, also where somebody lifts its suspension, as controllers of queues do; and it mounts no claim.
    """
    looker = {**render_looker(settings, spec, SECURITY, SCRATCH), "volumeMounts": [SCRATCH]}
    template = _render_look_template(service, spec, looker, [])
    job = render_job(service, told_name(service, revision), revision, template)
    return keep_found({**job, "spec": {**job["spec"], "suspend": True, "parallelism": 0}}, found)


def _render_look_template(service: Obj, spec: Spec, container: Obj, volumes: list[dict[str, Any]]) -> Obj:
    parts = {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes]}
    return render_job_template(service, spec, contract.COMPONENT_RESOLVER, _AS_REPLICAS, parts)
