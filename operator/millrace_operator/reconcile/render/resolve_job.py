"""The Job that asks a model's source which revision it has, before a pod of the revision is made. Pure."""

from millrace_operator.cluster.kinds import JOB, Obj
from millrace_operator.reconcile.render.metadata import account_name, render_child, revision_name
from millrace_operator.reconcile.render.model_source import render_resolver, render_secret_volumes
from millrace_operator.reconcile.render.pod_template import POD_SECURITY, SCRATCH, SECURITY
from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.resources.types import Spec
from millrace_runtime import contract

TRIES = 2**31 - 1
"""As many as can be written. The kubelet waits up to five minutes before each, and the owner may mend it."""


def render_resolve_job(settings: RenderSettings, service: Obj, spec: Spec, revision: str) -> Obj:
    """Return the Job. What it has found stands in the status of its pod."""
    own = {
        contract.LABEL_SERVICE: service["metadata"]["name"],
        contract.LABEL_COMPONENT: contract.COMPONENT_RESOLVER,
    }
    labels = {contract.LABEL_REVISION: revision}
    return {
        **render_child(service, JOB, revision_name(service, revision), labels),
        "spec": {
            "backoffLimit": TRIES,
            "template": {
                "metadata": {"labels": {**spec.pod.labels, **own}},
                "spec": {
                    "restartPolicy": "OnFailure",
                    "serviceAccountName": account_name(service),
                    "automountServiceAccountToken": False,
                    "securityContext": POD_SECURITY,
                    **_render_placement(spec),
                    "containers": [render_resolver(settings, spec, SECURITY, SCRATCH)],
                    "volumes": [{"name": "tmp", "emptyDir": {}}, *render_secret_volumes(spec)],
                },
            },
        },
    }


def _render_placement(spec: Spec) -> Obj:
    """Return how its image is pulled, and which taints it tolerates: all nodes may have those of GPUs."""
    dumped = spec.pod.model_dump(
        by_alias=True, exclude_none=True, include={"image_pull_secrets", "tolerations"}
    )
    return {field: value for field, value in dumped.items() if value}
