"""Where a replica finds its model: the path, the volume, and the container that fetches it first. Pure."""

import re
from typing import Any
from urllib.parse import urlsplit

from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.resources.types import Spec
from millrace_runtime import contract

MOUNT = "/mnt/model"
VOLUME = "model"
TERMINATION_MESSAGE = "/dev/termination-log"
"""Where the kubelet reads what a container has to say at its end, unless a pod names another place."""
MODEL_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""What a source may call a revision."""
_COMMIT = re.compile(r"@([0-9a-f]{40})$")
_FETCHED = frozenset({"hf", "https", "http"})
_TELLING = ("--progress-port", str(contract.PORT_PROGRESS))
_OF_NO_DEVICE = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUB_CACHE = "/tmp/huggingface"  # noqa: S108  the pod's own


def model_path(uri: str) -> str:
    """Return where the model's folder is inside the replica's container."""
    parts = urlsplit(uri)
    if parts.scheme == "pvc":
        return f"{MOUNT}/{parts.path.lstrip('/')}"
    return MOUNT if is_fetched(uri) else parts.path


def is_fetched(uri: str) -> bool:
    """Whether each pod fetches the model before its replica starts."""
    return urlsplit(uri).scheme in _FETCHED


def is_moving(uri: str) -> bool:
    """Whether another model may be at the URI tomorrow, so that somebody has to ask what is there now."""
    return is_fetched(uri) and find_commit(uri) is None


def find_commit(uri: str) -> str | None:
    """Return the commit that a URI names, None where it names none. A commit never changes."""
    found = _COMMIT.search(uri) if urlsplit(uri).scheme == "hf" else None
    return found[1] if found else None


def render_model_volumes(uri: str) -> list[dict[str, Any]]:
    """Return the volume that the model is in; none where it is in the image."""
    parts = urlsplit(uri)
    if parts.scheme == "pvc":
        return [{"name": VOLUME, "persistentVolumeClaim": {"claimName": parts.netloc, "readOnly": True}}]
    return [{"name": VOLUME, "emptyDir": {}}] if is_fetched(uri) else []


def render_model_mounts(uri: str) -> list[dict[str, Any]]:
    """Return where the replica sees that volume. It never writes there."""
    return [{"name": VOLUME, "mountPath": MOUNT, "readOnly": True}] if render_model_volumes(uri) else []


def render_fetchers(
    settings: RenderSettings,
    spec: Spec,
    model_revision: str | None,
    security: dict[str, Any],
    scratch: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the init container that fetches the model into the volume; none where nothing is fetched.

    `scratch` is the mount of the pod's /tmp. A pod whose node restarts it goes on with what is there already.
    """
    if not is_fetched(spec.model.uri):
        return []
    pinned = [] if model_revision is None else ["--revision", model_revision]
    return [
        {
            **_render_container(settings, spec, ["--to", MOUNT, *pinned, *_TELLING]),
            "ports": [{"name": "progress", "containerPort": contract.PORT_PROGRESS, "protocol": "TCP"}],
            "volumeMounts": [scratch, {"name": VOLUME, "mountPath": MOUNT}],
            "securityContext": security,
        }
    ]


def render_resolver(
    settings: RenderSettings, spec: Spec, security: dict[str, Any], scratch: dict[str, Any]
) -> dict[str, Any]:
    """Return the container that writes what the model's source has now into its termination message."""
    return {
        **_render_container(settings, spec, ["--resolve", TERMINATION_MESSAGE]),
        "volumeMounts": [scratch],
        "securityContext": security,
    }


def _render_container(settings: RenderSettings, spec: Spec, arguments: list[str]) -> dict[str, Any]:
    model = spec.model
    secret = model.credentials and {"secretRef": {"name": model.credentials.secret_name}}
    return {
        "name": contract.CONTAINER_FETCH,
        "image": settings.fetch_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["fetch", model.uri, *arguments],
        # First, so that the pod's own may say something else.
        "env": [
            {"name": "HF_HOME", "value": _HUB_CACHE},
            *({"name": variable.name, "value": variable.value} for variable in spec.pod.env),
        ],
        **({"envFrom": [secret]} if secret else {}),
        "resources": _render_resources(spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _render_resources(spec: Spec) -> dict[str, Any]:
    """Return the replica's own, without devices.

    A pod is given the larger of the two, so this costs nothing, and a quota that counts each container's
    is content.
    """
    amounts = {"limits": spec.resources.limits, "requests": spec.resources.requests}
    kept = {
        field: {name: str(value) for name, value in some.items() if name in _OF_NO_DEVICE}
        for field, some in amounts.items()
    }
    return {field: some for field, some in kept.items() if some}
