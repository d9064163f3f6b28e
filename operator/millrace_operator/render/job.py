"""What the Jobs of a service have in common. Pure."""

from typing import Any

from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import JOB, Obj
from millrace_operator.render.metadata import account_name, render_child
from millrace_operator.render.pod_template import POD_SECURITY
from millrace_runtime import contract

TRIES = 2**31 - 1
"""As many as can be written. The kubelet waits up to five minutes before each, and the owner may mend it."""


def render_job(service: Obj, name: str, revision: str, template: Obj) -> Obj:
    """Return a Job of a service's revision, which tries again and again."""
    return {
        **render_child(service, JOB, name, {contract.LABEL_REVISION: revision}),
        "spec": {"backoffLimit": TRIES, "template": template},
    }


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
