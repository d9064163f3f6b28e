"""The pod of a replica. The ControllerRevision freezes it when its revision is made."""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace_operator.api.field_types import Part
from millrace_operator.api.model_types import KvCacheFormat, Weights
from millrace_operator.api.pod_types import GRACE_SECONDS, PodOptions
from millrace_operator.api.quantities import count_gpus, has_gpu
from millrace_operator.api.scaling_types import ObjectiveMetric, Scaling
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.model.found_model import FoundModel
from millrace_operator.render.child import account_name, replica_labels
from millrace_operator.render.model_source import (
    find_kept,
    model_path,
    render_fetchers,
    render_model_mounts,
    render_model_volumes,
    render_secret_volumes,
)
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract

SCRATCH: dict[str, Any] = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108  the pod's own
SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""For each container."""
POD_SECURITY: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    # Otherwise the kubelet changes the owner of each file of a model before each start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
START_SECONDS = 7 * 24 * 3600
"""How long a replica may load before the kubelet restarts it: longer than any model takes.

The probe is frozen in the pod's template, and `rollout.progressDeadline` is not. So only the deadline judges
a slow start, and the owner may still raise it. `millrace serve --startup-deadline-seconds` has no effect
here: `/livez` is first asked when the replica is ready.
"""


def render_pod_template(
    settings: RenderSettings,
    service: Obj,
    spec: Spec,
    revision: str,
    model: FoundModel | None = None,
    *,
    gateway_keys: Sequence[str] = (),
) -> Obj:
    """Return the template of a revision's pods, which fetch that model, or have it in a claim.

    With `gateway_keys` they answer only requests with a token of one of these public keys.
    """
    kept = find_kept(service["metadata"]["namespace"], spec.model, model)
    labels = {**spec.pod.labels, **replica_labels(service), contract.LABEL_REVISION: revision}
    metadata: dict[str, Any] = {"labels": labels | (kept.labels if kept else {})}
    if annotations := spec.pod.annotations | (kept.annotations if kept else {}):
        metadata["annotations"] = annotations
    pod = _render_pod_spec(settings, service, spec, revision, model)
    pod["containers"][0]["args"] += _render_gateway_keys(service, gateway_keys)
    return {"metadata": metadata, "spec": pod | ({"affinity": kept.affinity} if kept else {})}


def _render_pod_spec(
    settings: RenderSettings, service: Obj, spec: Spec, revision: str, model: FoundModel | None
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if _shares_memory(spec):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    volumes += render_model_volumes(spec.model)
    fetchers = render_fetchers(settings, spec, model, SECURITY, SCRATCH)
    volumes += render_secret_volumes(spec) if fetchers else []
    return {
        "serviceAccountName": spec.pod.service_account_name or account_name(service),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # otherwise each container gets seven variables for each Service
        "terminationGracePeriodSeconds": spec.pod.grace_seconds,
        "securityContext": POD_SECURITY,
        **_render_placement(spec.pod, {**replica_labels(service), contract.LABEL_REVISION: revision}),
        **({"initContainers": fetchers} if fetchers else {}),
        "containers": [_render_container(settings, service, spec, model)],
        "volumes": volumes,
    }


def _render_placement(pod: PodOptions, revision_labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the requests to the scheduler and the kubelet, without those that are left out."""
    placement = {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [_dump(toleration) for toleration in pod.tolerations],
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
        "imagePullSecrets": [_dump(secret) for secret in pod.image_pull_secrets],
        "topologySpreadConstraints": [
            {**_dump(constraint), "labelSelector": {"matchLabels": dict(revision_labels)}}
            for constraint in pod.topology_spread_constraints
        ],
        "resourceClaims": [_dump(claim, exclude={"request"}) for claim in pod.resource_claims],
    }
    return {field: value for field, value in placement.items() if value}


def _dump(part: Part, *, include: set[str] | None = None, exclude: set[str] | None = None) -> dict[str, Any]:
    """Return a part of the spec as a Pod writes it."""
    return part.model_dump(by_alias=True, exclude_none=True, include=include, exclude=exclude)


def _render_container(
    settings: RenderSettings, service: Obj, spec: Spec, model: FoundModel | None
) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [SCRATCH]
    if _shares_memory(spec):
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108  as above
    mounts += render_model_mounts(spec.model)
    return {
        "name": contract.CONTAINER_REPLICA,
        "image": settings.find_image(spec.engine.version),
        "imagePullPolicy": settings.image_pull_policy,
        "args": [*render_arguments(service, spec, model), *_render_targets(settings, spec)],
        "env": [{"name": variable.name, "value": variable.value} for variable in spec.pod.env],
        "ports": [
            {"name": contract.PORT_NAME_HTTP, "containerPort": contract.PORT_HTTP, "protocol": "TCP"},
            {"name": "live", "containerPort": contract.PORT_LIVE, "protocol": "TCP"},
        ],
        "resources": _render_resources(spec),
        "volumeMounts": mounts,
        # The last log lines become the pod's status, from where they reach the service's conditions.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_render_probes(is_own_version=settings.is_own_version(spec.engine.version)),
        "securityContext": SECURITY,
    }


def render_arguments(service: Obj, spec: Spec, model: FoundModel | None = None) -> list[str]:
    """Return the arguments of `millrace serve` for this spec."""
    engine = spec.engine
    optional = (
        (contract.FLAG_MAX_MODEL_LENGTH, engine.max_model_length),
        (contract.FLAG_MAX_SEQUENCES, engine.max_sequences),
        (contract.FLAG_MAX_BATCHED_TOKENS, engine.max_batched_tokens),
    )
    arguments = ["serve", contract.FLAG_MODEL, model_path(spec.model, model)]
    arguments += [contract.FLAG_SERVED_NAME, served_name(service, spec)]
    if (weights := spec.model.quantization.weights) is not Weights.FROM_CHECKPOINT:
        arguments += [contract.FLAG_WEIGHTS, weights.value]
    if (kv_cache := spec.model.quantization.kv_cache) is not KvCacheFormat.MODEL:
        arguments += [contract.FLAG_KV_CACHE, kv_cache.value]
    if (speculation := spec.model.speculation) is not None:
        arguments += [contract.FLAG_SPECULATIVE_TOKENS, str(speculation.tokens)]
    if has_gpu(spec.resources.limits):
        arguments += [contract.FLAG_DEVICE, "cuda"]
    if (workers := _count_workers(spec)) > 1:
        arguments += [contract.FLAG_TENSOR_PARALLEL, str(workers)]
    if spec.pod.grace_seconds != GRACE_SECONDS:
        arguments += [contract.FLAG_DRAIN_SECONDS, str(spec.pod.drain_seconds)]
    for flag, value in optional:
        if value is not None:
            arguments += [flag, str(value)]
    return arguments


def _render_targets(settings: RenderSettings, spec: Spec) -> list[str]:
    """Return the arguments that come from objectives, and so from no input of the revision.

    They are as the objectives were when the revision was made: an edit of an objective restarts no pod. The
    owner did not ask for them, so an engine of another version, which may not know them, gets none.
    """
    target = find_inter_token_seconds(spec.scaling)
    if target is None or not settings.is_own_version(spec.engine.version):
        return []
    least, most = contract.INTER_TOKEN_SECONDS
    return [contract.FLAG_TARGET_INTER_TOKEN, f"{min(max(target, least), most):g}"]


def _render_gateway_keys(service: Obj, keys: Sequence[str]) -> list[str]:
    """Return the arguments by which a replica verifies gateways.

    An engine of another version gets them too. If it does not know them it does not start: no replica of a
    service with keys ever answers a client without one.
    """
    if not keys:
        return []
    metadata = service["metadata"]
    named = [f"{contract.FLAG_GATEWAY_KEY}={key}" for key in keys]  # a key may begin with a hyphen
    return [contract.FLAG_SERVICE, f"{metadata['namespace']}/{metadata['name']}", *named]


def find_inter_token_seconds(scaling: Scaling) -> float | None:
    """Return the tightest target of the time per output token, in seconds; None without one."""
    metric = ObjectiveMetric.TIME_PER_OUTPUT_TOKEN
    return min((each.target_seconds for each in scaling.objectives if each.metric is metric), default=None)


def _count_workers(spec: Spec) -> int:
    return spec.parallelism.tensor or max(1, count_gpus(spec.resources.limits))


def _shares_memory(spec: Spec) -> bool:
    """Whether workers on GPUs share /dev/shm, for which a container's own 64 MiB are too few."""
    return _count_workers(spec) > 1 and (has_gpu(spec.resources.limits) or bool(spec.pod.resource_claims))


def served_name(service: Obj, spec: Spec) -> str:
    """Return the name that clients write in a request's `model`."""
    return spec.model.served_name or str(service["metadata"]["name"])


def _render_resources(spec: Spec) -> dict[str, Any]:
    amounts = {"limits": spec.resources.limits, "requests": spec.resources.requests}
    rendered: dict[str, Any] = {
        field: {name: str(value) for name, value in some.items()} for field, some in amounts.items() if some
    }
    if spec.pod.resource_claims:
        rendered["claims"] = [_dump(claim, include={"name", "request"}) for claim in spec.pod.resource_claims]
    return rendered


def _render_probes(*, is_own_version: bool) -> dict[str, Any]:
    """Return the three probes.

    A replica answers the startup probe at the moment when it is ready, so that it serves at once. Its
    supervisor answers the others under any load. The supervisor of another version may know only `/livez`, so
    the readiness probe asks the HTTP port there.
    """
    port = contract.PORT_LIVE if is_own_version else contract.PORT_HTTP
    started = {"path": contract.PATH_STARTED, "port": contract.PORT_HTTP}
    ready = {"path": contract.PATH_READY, "port": port}
    live = {"path": contract.PATH_LIVE, "port": contract.PORT_LIVE}
    return {
        "startupProbe": {
            "httpGet": started,
            "initialDelaySeconds": 1,  # the port is bound by then
            "periodSeconds": contract.STARTED_WAIT_SECONDS,
            # It connects before the HTTP process runs, which is when the wait begins.
            "timeoutSeconds": 10,
            "failureThreshold": START_SECONDS // contract.STARTED_WAIT_SECONDS,
        },
        "readinessProbe": {"httpGet": ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {"httpGet": live, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 3},
    }
