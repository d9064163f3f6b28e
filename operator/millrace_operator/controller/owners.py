"""Which service an object belongs to and as what, and what services say of themselves. Pure.

Tells of the objects of a list that nobody can read. They are left out, so that all others are known.
"""

import logging
from collections.abc import Mapping

from millrace_operator.api.conditions import Reason
from millrace_operator.kube.kinds import Kind, Obj, Role, ServiceKey, kind_of
from millrace_runtime import contract


def owner_of(obj: Obj) -> ServiceKey | None:
    """Return the key of the service that an object is or belongs to; None for none.

    Its controller says so, or else its label: a label can be lost, and a pod's controller is a ReplicaSet.
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


def is_replica(metadata: Obj, labels: Mapping[str, str]) -> bool:
    """Whether a pod is of one of our Deployments. Older ones have no component: their owner tells."""
    if contract.LABEL_COMPONENT in labels:
        return labels[contract.LABEL_COMPONENT] == contract.COMPONENT_REPLICA
    owners = metadata.get("ownerReferences", [])
    is_made = any(owner.get("controller") and owner.get("kind") == "ReplicaSet" for owner in owners)
    return is_made and contract.LABEL_REVISION in labels


def has_to_fetch(pod: Obj) -> bool:
    """Whether a pod's container has begun to fetch a model, and has not ended well."""
    status = pod.get("status", {})
    containers = (*status.get("initContainerStatuses", []), *status.get("containerStatuses", []))
    states = (one.get("state", {}) for one in containers if one.get("name") == contract.CONTAINER_FETCH)
    return any(state.get("terminated", {}).get("exitCode") != 0 for state in states)


def lacks_room(service: Obj) -> bool:
    """Whether status says that the model fits on no device."""
    conditions = service.get("status", {}).get("conditions") or []
    return any(condition.get("reason") == Reason.DOES_NOT_FIT for condition in conditions)


def name_odd(kind: Kind, obj: Obj) -> str:
    """Return what to call an object that may lack its name."""
    metadata = obj.get("metadata") or {}
    return f"{kind.kind} {metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _find_controller(metadata: Obj) -> str | None:
    """Return the name of the InferenceService that controls an object."""
    for reference in metadata.get("ownerReferences", []):
        group = reference.get("apiVersion", "").partition("/")[0]
        if reference.get("controller") and (group, reference.get("kind")) == (contract.GROUP, contract.KIND):
            return str(reference["name"])
    return None


LOG = logging.getLogger(__name__)


def tell_odd(odd: Mapping[str, Exception]) -> None:
    """Log each of these objects, with the trace of what was raised at it."""
    for name, error in odd.items():
        LOG.error("%s cannot be read, and is left as it was known: %r", name, error, exc_info=error)
