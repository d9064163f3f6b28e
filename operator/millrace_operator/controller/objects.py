"""A watched object's service, and its role there. Pure."""

import logging
from collections import Counter
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from millrace_kubernetes.model_names import ModelNames, read_running_name, read_served_name
from millrace_operator.api.conditions import Reason, find_condition
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.kube.kinds import Kind, Obj, ObjectKey, Role, ServiceKey, kind_of
from millrace_operator.kube.node import GpuNode, find_departure, find_gpus
from millrace_runtime import contract

LOG = logging.getLogger(__name__)
_OF_JOBS = frozenset({contract.COMPONENT_RESOLVER, contract.COMPONENT_FILLER})


class Group(Enum):
    """Objects of a service that the cache looks up together."""

    CHILDREN = auto()
    """All objects except pods."""
    PODS = auto()
    """Pods of replicas."""
    JOB_PODS = auto()
    FETCHING = auto()
    """Pods that still have a model to fetch. They are few, so that the operator need not search all pods."""


def key_of(obj: Obj) -> ObjectKey:
    """Return the kind, namespace and name of an object. The namespace is empty for an object in none."""
    metadata = obj["metadata"]
    return ObjectKey(obj["kind"], metadata.get("namespace", ""), metadata["name"])


def version_of(obj: Obj) -> int:
    """Return an object's resourceVersion; 0 without one."""
    return int(obj["metadata"].get("resourceVersion", 0))


def uid_of(obj: Obj) -> str:
    """Return an object's uid; empty without one."""
    return str(obj["metadata"].get("uid", ""))


def owner_of(obj: Obj) -> ServiceKey | None:
    """Return the key of the service that an object is or belongs to; None without one.

    The controller names the service, or else the label does: a label can be lost, and a pod's controller is a
    ReplicaSet.
    """
    metadata, role = obj["metadata"], kind_of(obj).role
    if role is Role.SERVICE:
        return ServiceKey(metadata["namespace"], metadata["name"])
    if role is Role.NODE:
        return None
    name = _find_controller(metadata) or metadata.get("labels", {}).get(contract.LABEL_SERVICE)
    return None if name is None else ServiceKey(metadata["namespace"], name)


def is_controlled(obj: Obj) -> bool:
    """Whether an object's controller is an InferenceService."""
    return _find_controller(obj["metadata"]) is not None


def _find_controller(metadata: Obj) -> str | None:
    """Return the name of the InferenceService that controls an object."""
    for reference in metadata.get("ownerReferences", []):
        group = reference.get("apiVersion", "").partition("/")[0]
        if reference.get("controller") and (group, reference.get("kind")) == (contract.GROUP, contract.KIND):
            return str(reference["name"])
    return None


def is_replica(metadata: Obj, labels: Mapping[str, str]) -> bool:
    """Whether a pod is of one of our Deployments. Older pods have no component, so their owner decides."""
    if contract.LABEL_COMPONENT in labels:
        return labels[contract.LABEL_COMPONENT] == contract.COMPONENT_REPLICA
    owners = metadata.get("ownerReferences", [])
    is_made = any(owner.get("controller") and owner.get("kind") == "ReplicaSet" for owner in owners)
    return is_made and contract.LABEL_REVISION in labels


def has_to_fetch(pod: Obj) -> bool:
    """Whether a pod's container has begun to fetch a model, and has not succeeded."""
    status = pod.get("status", {})
    containers = (*status.get("initContainerStatuses", []), *status.get("containerStatuses", []))
    states = (one.get("state", {}) for one in containers if one.get("name") == contract.CONTAINER_FETCH)
    return any(state.get("terminated", {}).get("exitCode") != 0 for state in states)


def lacks_room(service: Obj) -> bool:
    """Whether status says that the model fits on no device."""
    conditions = service.get("status", {}).get("conditions") or []
    return any(condition.get("reason") == Reason.DOES_NOT_FIT for condition in conditions)


def is_late(held: Obj | None, written: Obj) -> bool:
    """Whether the result of a write of ours comes too late: the object is gone by now, or was created again.

    Others make services and pods, so a missing one is gone. A missing child may be the one that this write
    has created. A change of an existing child checks for it first, and a creation lets the cache remember
    deletions meanwhile.
    """
    if held is None:
        return kind_of(written).role in (Role.SERVICE, Role.POD)
    known, returned = held["metadata"], written["metadata"]
    is_another = known.get("uid") != returned.get("uid")
    return is_another and int(known["resourceVersion"]) > int(returned["resourceVersion"])


class Running(NamedTuple):
    """The model name that a replica answers to, and its service."""

    owner: ServiceKey
    name: str


def find_running(obj: Obj, owner: ServiceKey | None) -> Running | None:
    """Return the name that a replica answers to, if it is Ready and is not being deleted."""
    metadata = obj["metadata"]
    is_there = kind_of(obj).role is Role.POD and "deletionTimestamp" not in metadata
    if owner is None or not is_there or not is_replica(metadata, metadata.get("labels", {})):
        return None
    ready = find_condition(obj.get("status", {}), "Ready") or {}
    if ready.get("status") != "True":
        return None
    name = read_running_name(obj, contract.CONTAINER_REPLICA, contract.FLAG_SERVED_NAME)
    return None if name is None else Running(owner, name)


class Place(NamedTuple):
    """An object's place in the cache, and the values that the cache keeps of it."""

    owner: ServiceKey | None
    groups: tuple[Group, ...]
    """The groups that have it; none for an object that belongs to no service."""
    departure: str | None
    """Why a node is being emptied."""
    gpus: GpuNode | None
    served_name: str | None
    """Of a service."""
    is_scaled: bool
    """Whether the operator decides about a service's count: its mode is not External."""
    running: Running | None
    """Of a Ready replica's pod."""


def find_place(obj: Obj) -> Place:
    """Return all that the cache looks up of an object. An unreadable object raises an error here."""
    role, owner = kind_of(obj).role, owner_of(obj)
    is_node, is_owned = role is Role.NODE, owner is not None and role is not Role.SERVICE
    return Place(
        owner=owner,
        groups=find_groups(obj) if is_owned else (),
        departure=find_departure(obj) if is_node else None,
        gpus=find_gpus(obj) if is_node else None,
        served_name=read_served_name(obj) if role is Role.SERVICE else None,
        is_scaled=role is Role.SERVICE and is_scaled(obj),
        running=find_running(obj, owner),
    )


def is_scaled(service: Obj) -> bool:
    """Whether the operator decides about a service's count. True where the mode cannot be read."""
    spec = service.get("spec")
    scaling = spec.get("scaling") if isinstance(spec, Mapping) else None
    mode = scaling.get("mode") if isinstance(scaling, Mapping) else None
    return bool(mode != ScalingMode.EXTERNAL)


def find_groups(obj: Obj) -> tuple[Group, ...]:
    """Return the groups of a service's object; none for a foreign pod with our label."""
    if kind_of(obj).role is not Role.POD:
        return (Group.CHILDREN,)
    labels = obj["metadata"].get("labels", {})
    component = labels.get(contract.LABEL_COMPONENT)
    fetching = (Group.FETCHING,) if has_to_fetch(obj) else ()
    if component in _OF_JOBS:  # a pod that asks a source fetches nothing
        return (Group.JOB_PODS, *(fetching if component == contract.COMPONENT_FILLER else ()))
    return (Group.PODS, *fetching) if is_replica(obj["metadata"], labels) else ()


def leave_out_foreign(obj: Obj) -> Obj:
    """Return the object; only its head if it looks like a child or a pod of ours and is none.

    Anybody may make such objects, of any size.
    """
    role = kind_of(obj).role
    if role not in {Role.CHILD, Role.POD} or (find_groups(obj) if role is Role.POD else is_controlled(obj)):
        return obj
    metadata = {field: value for field, value in obj["metadata"].items() if field != "annotations"}
    return {"apiVersion": obj.get("apiVersion"), "kind": obj["kind"], "metadata": metadata}


class RunningNames:
    """Counts the replicas by name. A name is a claim while a replica has it."""

    def __init__(self, names: ModelNames[ServiceKey]) -> None:
        self._names = names
        self._counts: dict[ServiceKey, Counter[str]] = {}

    def count(self, before: Running | None, now: Running | None) -> None:
        """Record what a pod answers to now. If that has not changed, the claims are not checked again."""
        if before == now:
            return
        for running, change in ((now, 1), (before, -1)):
            if running is not None:
                self._change(running, change)

    def _change(self, running: Running, change: int) -> None:
        counts = self._counts.pop(running.owner, Counter())
        counts[running.name] += change
        left = +counts  # without the names whose count is zero
        if left:
            self._counts[running.owner] = left
        self._names.put_running(running.owner, frozenset(left))


def name_unreadable(kind: Kind, obj: Obj) -> str:
    """Return a name for an object that may lack its own."""
    metadata = obj.get("metadata") or {}
    return f"{kind.kind} {metadata.get('namespace', '')}/{metadata.get('name', '')}"


def log_unreadable(unreadable: Mapping[str, Exception]) -> None:
    """Log each of these objects, with the trace of its error."""
    for name, error in unreadable.items():
        LOG.error("%s cannot be read, and the cache keeps what it had: %r", name, error, exc_info=error)
