"""Where a replica finds its model: the path, the volume, and the container that fetches it first. Pure.

A pod also carries labels about a model that its node keeps, for the node's agent and for the scheduler.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from millrace_operator.api.model_types import Model
from millrace_operator.api.model_uri import is_fetched
from millrace_operator.api.types import Spec
from millrace_operator.model.found_model import FoundModel, find_place
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract

_MOST_WEIGHT = 100
"""The largest weight of a preference. The scheduler adds it to its own preferences, which spread pods."""


@dataclass(frozen=True)
class KeptModel:
    """A model that nodes keep."""

    name: str
    num_bytes: int | None
    """None if its source does not report it."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which the agent knows that a pod reads the model."""
        return {contract.LABEL_KEPT: self.name}

    @property
    def annotations(self) -> dict[str, str]:
        """The size for which the agent makes room."""
        return {} if self.num_bytes is None else {contract.ANNOTATION_KEPT_BYTES: str(self.num_bytes)}

    @property
    def affinity(self) -> dict[str, Any]:
        """The preference for a node that has the model. It excludes no other node."""
        there = {"key": f"{contract.LABEL_KEPT_ON_NODE}{self.name}", "operator": "Exists"}
        preferred = {"weight": _MOST_WEIGHT, "preference": {"matchExpressions": [there]}}
        return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def find_kept(namespace: str, model: Model, found: FoundModel | None) -> KeptModel | None:
    """Return the model that the nodes keep for a revision; None if they keep none."""
    place = find_place(model, found)
    if place is None or found is None or not model.cache.is_on_nodes:
        return None
    return KeptModel(contract.name_kept(namespace, place.path), found.num_bytes)


MOUNT = "/mnt/model"
VOLUME = "model"
ACCESS = "credentials"
CREDENTIALS = "/var/run/secrets/millrace.dev/model"
_AUTHORITIES = f"{CREDENTIALS}/ca.crt"
TERMINATION_MESSAGE = "/dev/termination-log"
"""The kubelet reads a container's last message here, unless the pod names another place."""
_PROGRESS_FLAGS = ("--progress-port", str(contract.PORT_PROGRESS))
_UNSYNCED = ("--no-sync",)
"""For a pod's own folder, which is lost with the pod. Many disks are slower than the network."""
_DISK = "ephemeral-storage"
_DISK_SHARE, _DISK_SPARE_MIB = 1.01, 64
"""Beside a model's bytes, for the file system, the pod's logs and /tmp."""
_OF_NO_DEVICE = frozenset({"cpu", "memory", _DISK})
_OF_RESOLVER = {
    "limits": {"cpu": "1", "memory": "1Gi"},
    "requests": {"cpu": "50m", "memory": "128Mi"},
}
"""It reads only headers, and needs no room of a replica's size."""
_OF_FILLER = {
    "limits": {"cpu": "4", "memory": "2Gi"},
    "requests": {"cpu": "100m", "memory": "256Mi"},
}
"""A Job's pod has no replica whose room it could use."""
_HUB_CACHE = "/tmp/huggingface"  # noqa: S108  the pod's own


def model_path(model: Model, found: FoundModel | None) -> str:
    """Return the model's folder inside the replica's container."""
    parts, place = urlsplit(model.uri), find_place(model, found)
    if place is not None:
        return f"{MOUNT}/{place.path}"
    if parts.scheme == "pvc":
        return f"{MOUNT}/{parts.path.lstrip('/')}"
    return MOUNT if is_fetched(model.uri) else parts.path


def find_claim(uri: str) -> str | None:
    """Return the claim that has the model already; None for a model elsewhere."""
    parts = urlsplit(uri)
    return parts.netloc if parts.scheme == "pvc" else None


def render_model_volumes(model: Model) -> list[dict[str, Any]]:
    """Return the volume with the model; none if the model is in the image."""
    claim = find_claim(model.uri) or model.cache.claim
    if model.cache.is_on_nodes:
        return [render_writable_volume(model)]  # the container that fetches writes there
    if claim is not None:
        return [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    return [{"name": VOLUME, "emptyDir": {}}] if is_fetched(model.uri) else []


def render_writable_volume(model: Model) -> dict[str, Any]:
    """Return the volume of the claim into which a model is fetched."""
    return {"name": VOLUME, "persistentVolumeClaim": {"claimName": model.cache.claim}}


def render_model_mounts(model: Model) -> list[dict[str, Any]]:
    """Return the replica's mount of that volume. It is read-only."""
    return [{"name": VOLUME, "mountPath": MOUNT, "readOnly": True}] if render_model_volumes(model) else []


def render_secret_volumes(spec: Spec) -> list[dict[str, Any]]:
    """Return the volume with the Secret of the model's source; none without one.

    The volume is optional, because a pod's status does not show that a volume waits for a Secret. It does
    show that for the container's variables, which come from the same Secret.
    """
    credentials = spec.model.credentials
    if credentials is None:
        return []
    return [{"name": ACCESS, "secret": {"secretName": credentials.secret_name, "optional": True}}]


def _render_secret_mounts(spec: Spec) -> list[dict[str, Any]]:
    mount = {"name": ACCESS, "mountPath": CREDENTIALS, "readOnly": True}
    return [mount] if render_secret_volumes(spec) else []


def render_fetchers(
    settings: RenderSettings,
    spec: Spec,
    model: FoundModel | None,
    security: dict[str, Any],
    scratch: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the init container that fetches the model; none for a model that is there already.

    `scratch` is the mount of the pod's /tmp. A pod that its node restarts continues with the files that are
    there. On a node that keeps models it ends at once if another pod has fetched this one.
    """
    cache = spec.model.cache
    if not is_fetched(spec.model.uri) or (cache.claim is not None and not cache.is_on_nodes):
        return []
    more = () if cache.is_on_nodes else _UNSYNCED
    container = _render_writer(settings, spec, model_path(spec.model, model), model, scratch, more=more)
    resources = _render_resources(spec)
    resources = resources if cache.is_on_nodes else _ask_for_room(resources, model)
    return [{**container, "resources": resources, "securityContext": security}]


def render_filler(
    settings: RenderSettings,
    spec: Spec,
    model: FoundModel,
    security: dict[str, Any],
    scratch: dict[str, Any],
) -> dict[str, Any]:
    """Return the container that fetches the model into a claim, where the replicas will read it."""
    container = _render_writer(settings, spec, model_path(spec.model, model), model, scratch)
    return {**container, "resources": _OF_FILLER, "securityContext": security}


def _render_writer(
    settings: RenderSettings,
    spec: Spec,
    folder: str,
    model: FoundModel | None,
    scratch: dict[str, Any],
    *,
    more: Iterable[str] = (),
) -> dict[str, Any]:
    pinned = [] if model is None or model.revision is None else ["--revision", model.revision]
    return {
        **_render_container(settings, spec, ["--to", folder, *pinned, *_PROGRESS_FLAGS, *more]),
        "ports": [{"name": "progress", "containerPort": contract.PORT_PROGRESS, "protocol": "TCP"}],
        "volumeMounts": [scratch, {"name": VOLUME, "mountPath": MOUNT}, *_render_secret_mounts(spec)],
    }


def render_resolver(
    settings: RenderSettings,
    spec: Spec,
    security: dict[str, Any],
    scratch: dict[str, Any],
) -> dict[str, Any]:
    """Return the container that writes the source's answer into its termination message."""
    return {
        **_render_container(settings, spec, ["--resolve", TERMINATION_MESSAGE]),
        "resources": _OF_RESOLVER,
        "volumeMounts": [scratch, *_render_secret_mounts(spec)],
        "securityContext": security,
    }


def render_looker(
    settings: RenderSettings, spec: Spec, security: dict[str, Any], scratch: dict[str, Any]
) -> dict[str, Any]:
    """Return the container that writes the facts of a model in a claim into its termination message."""
    folder = f"file://{model_path(spec.model, None)}"
    return {
        **_render_command(settings, ["fetch", folder, "--resolve", TERMINATION_MESSAGE]),
        "env": [{"name": variable.name, "value": variable.value} for variable in spec.pod.env],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _OF_RESOLVER,
        "volumeMounts": [scratch, *render_model_mounts(spec.model)],
        "securityContext": security,
    }


def _render_command(settings: RenderSettings, arguments: list[str]) -> dict[str, Any]:
    return {
        "name": contract.CONTAINER_FETCH,
        "image": settings.fetch_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": arguments,
    }


def _render_container(settings: RenderSettings, spec: Spec, arguments: list[str]) -> dict[str, Any]:
    model = spec.model
    secret = model.credentials and {"secretRef": {"name": model.credentials.secret_name}}
    return {
        **_render_command(settings, ["fetch", model.uri, *arguments, *_render_authorities(spec)]),
        # First, so that the pod's own variables may override them.
        "env": [
            {"name": "HF_HOME", "value": _HUB_CACHE},
            {"name": "DOCKER_CONFIG", "value": CREDENTIALS},
            *({"name": variable.name, "value": variable.value} for variable in spec.pod.env),
        ],
        **({"envFrom": [secret]} if secret else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _render_authorities(spec: Spec) -> list[str]:
    """Return the flag that names the Secret's authorities. Without any the file does not exist."""
    return ["--ca-file", _AUTHORITIES] if spec.model.credentials else []


def _ask_for_room(resources: dict[str, Any], model: FoundModel | None) -> dict[str, Any]:
    """Return the resources with room for the model on the node's disk, if its size is known.

    The owner's own amounts for the disk have priority.
    """
    if model is None or model.num_bytes is None or any(_DISK in some for some in resources.values()):
        return resources
    mebibytes = math.ceil(model.num_bytes * _DISK_SHARE / 2**20) + _DISK_SPARE_MIB
    return {**resources, "requests": {**resources.get("requests", {}), _DISK: f"{mebibytes}Mi"}}


def _render_resources(spec: Spec) -> dict[str, Any]:
    """Return the replica's own resources, without devices.

    A pod gets the larger amount of the two containers, so this costs nothing, and it satisfies a quota that
    needs amounts of each container.
    """
    amounts = {"limits": spec.resources.limits, "requests": spec.resources.requests}
    kept = {
        field: {name: str(value) for name, value in some.items() if name in _OF_NO_DEVICE}
        for field, some in amounts.items()
    }
    return {field: some for field, some in kept.items() if some}
