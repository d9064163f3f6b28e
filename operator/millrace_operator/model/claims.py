"""Whether the claim of `spec.model.cache` can keep a model for the replicas, and when to look at it. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from millrace_operator.api.conditions import Reason
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import ServiceKey
from millrace_operator.observed.snapshot import Claim
from millrace_operator.status.causes import Cause
from millrace_runtime import contract

LOOK_SECONDS = 10.0
"""Between two lookups of a claim that is absent or unusable: somebody may be fixing it."""
GOOD_LOOK_SECONDS = 300.0
"""Between two lookups of a claim that serves: somebody may delete it."""
BLIND_LOOK_SECONDS = 60.0
"""Between two attempts if the API server does not let us look."""
_SHARED = "ReadWriteMany"
_OF_ONE_NODE = ("ReadWriteOnce", "ReadWriteOncePod")
_PREPARE = (
    "with cache type NodeLocal the chart creates the claim in each namespace of nodeCache.namespaces, "
    "to which the installer of Millrace adds this one"
)


def read_claim(namespace: str, name: str, obj: Mapping[str, Any] | None) -> Claim:
    """Return a claim from its raw object. `obj` is None if there is no such claim."""
    if obj is None:
        return Claim(namespace, name, None)
    spec, status, metadata = (obj.get(part, {}) for part in ("spec", "status", "metadata"))
    modes = frozenset(mode for part in (spec, status) for mode in part.get("accessModes", []))
    volume = spec.get("volumeName") if status.get("phase") == "Bound" else None
    return Claim(namespace, name, modes, volume, is_leaving="deletionTimestamp" in metadata)


def judge_claim(spec: Spec, claim: Claim | None) -> Cause | None:
    """Return why the claim can keep no model; None if it can, or if nothing is known of it."""
    if claim is None or claim.name != spec.model.cache.claim:
        return None
    if claim.access_modes is None:
        return _explain_absence(spec, claim.name)
    if spec.model.cache.is_on_nodes:
        return _judge_volume(claim)
    if _SHARED in claim.access_modes:
        return None
    mode = next((mode for mode in _OF_ONE_NODE if mode in claim.access_modes), None)
    return _refuse_read_only(claim.name) if mode is None else _judge_count(spec, claim.name, mode)


def _explain_absence(spec: Spec, name: str) -> Cause:
    create = "create it, or name another one in spec.model.cache.claimName"
    way = _PREPARE if spec.model.cache.is_on_nodes else create
    return Cause(Reason.CACHE_UNUSABLE, f"there is no PersistentVolumeClaim {name} in this namespace: {way}")


def _judge_volume(claim: Claim) -> Cause | None:
    """Return why a claim is not the node cache's. A tenant can make a claim of that name, but no volume."""
    wanted = f"{contract.VOLUME_KEPT}{claim.namespace}"
    if claim.volume == wanted:
        return None
    bound = "is bound to no volume" if claim.volume is None else f"is bound to volume {claim.volume}"
    return Cause(
        Reason.CACHE_UNUSABLE,
        f"PersistentVolumeClaim {claim.name} {bound}, and the folders of the nodes are volume {wanted}: "
        f"delete the claim if it is not the chart's own; {_PREPARE}",
    )


def _refuse_read_only(name: str) -> Cause:
    return Cause(
        Reason.CACHE_UNUSABLE,
        f"nothing can be fetched into PersistentVolumeClaim {name}, which is only ReadOnlyMany: name a "
        "ReadWriteMany claim in spec.model.cache.claimName; or, where the model is in this one, leave "
        f"spec.model.cache out and write spec.model.uri as pvc://{name}/folder",
    )


def _judge_count(spec: Spec, name: str, mode: str) -> Cause | None:
    is_external = spec.scaling.mode is ScalingMode.EXTERNAL
    most = (spec.replicas or 0) if is_external else spec.scaling.max_replicas
    if most <= 1:
        return None
    field = "spec.replicas" if is_external else "spec.scaling.maxReplicas"
    return Cause(
        Reason.CACHE_UNUSABLE,
        f"PersistentVolumeClaim {name} is {mode}, so only one node can use it, and {field} is {most}: name a "
        f"ReadWriteMany claim in spec.model.cache.claimName, or write {field}: 1",
    )


def find_look(spec: Spec, claim: Claim | None) -> float | None:
    """Return after how many seconds to look the claim up again; None if the spec names none."""
    if spec.model.cache.claim is None:
        return None
    if claim is None:
        return BLIND_LOOK_SECONDS
    return GOOD_LOOK_SECONDS if judge_claim(spec, claim) is None else LOOK_SECONDS


class _Seen(NamedTuple):
    claim: Claim | None
    generation: int
    """The generation of the service's spec at that time."""
    at: float


class Claims:
    """Owner of the seen claims of services. A good claim is looked up rarely, and after an edit."""

    def __init__(self) -> None:
        self._seen: dict[ServiceKey, _Seen] = {}

    def is_due(self, key: ServiceKey, spec: Spec, generation: int, now: float) -> bool:
        """Whether a lookup of the claim is due, for a service that has one."""
        seen = self._seen.get(key)
        if seen is None or seen.generation != generation:
            return True
        wait = find_look(spec, seen.claim)
        return wait is not None and now >= seen.at + wait

    def keep(self, key: ServiceKey, claim: Claim | None, generation: int, now: float) -> None:
        """Record the result of a lookup; None if it had none."""
        self._seen[key] = _Seen(claim, generation, now)

    def recall(self, key: ServiceKey) -> Claim | None:
        """Return a service's claim as last seen; None if it was not seen."""
        seen = self._seen.get(key)
        return None if seen is None else seen.claim

    def forget(self, key: ServiceKey) -> None:
        """Forget the claim of a service that is gone or names no claim."""
        self._seen.pop(key, None)
