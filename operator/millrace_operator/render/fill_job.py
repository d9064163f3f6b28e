"""The Job that fetches a model into a claim, before a pod of the revision is made. Pure."""

from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.model.found_model import FoundModel
from millrace_operator.render.job import render_job, render_job_template
from millrace_operator.render.metadata import fill_name
from millrace_operator.render.model_source import (
    render_filler,
    render_secret_volumes,
    render_writable_volume,
)
from millrace_operator.render.pod_template import SCRATCH, SECURITY
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract

_PLACEMENT = {"image_pull_secrets", "tolerations", "node_selector"}
"""As of the replicas: the first pod of a claim may decide in which zone its volume is."""


def render_fill_job(
    settings: RenderSettings, service: Obj, spec: Spec, revision: str, found: FoundModel
) -> Obj:
    """Return the Job."""
    parts = {
        "containers": [render_filler(settings, spec, found, SECURITY, SCRATCH)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            render_writable_volume(spec.model),
            *render_secret_volumes(spec),
        ],
    }
    template = render_job_template(service, spec, contract.COMPONENT_FILLER, _PLACEMENT, parts)
    return render_job(service, fill_name(service, revision), revision, template)
