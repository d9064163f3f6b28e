"""What all children of a service have in common: names, labels, owner, the seal that shows drift, and needs.

Only our own fields are compared.

A child is made after the objects that it needs. Without its ServiceAccount a Deployment makes no pod. Without
its ControllerRevision, which records what its pods are, the next operator could not make the Deployment
again. So a Deployment waits while one of them is refused or is somebody else's, and status names that one.
Only the creation waits: an existing Deployment is scaled and corrected even while one of these is missing.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from millrace_operator.api.quantities import parse_quantity
from millrace_operator.kube.kinds import Kind, Obj, ObjectId, object_id
from millrace_runtime import contract

APPLIED = "millrace.dev/applied"
"""An annotation: the hash of what we applied. It shows fields that we no longer want."""
_OTHERWISE = re.compile(rb"\x7f|[:,\[]-?(?:[0-9.]+e|0\.0000)")
"""What orjson and json write differently: DEL, and numbers that only one of them writes with an exponent."""


def headless_name(service: Obj) -> str:
    """Name of the headless Service over the replicas."""
    return f"{service['metadata']['name']}-replicas"


def account_name(service: Obj) -> str:
    """Name of the ServiceAccount that the operator makes for the replicas."""
    return f"{service['metadata']['name']}-replica"


def revision_name(service: Obj, revision: str) -> str:
    """Name of a revision's Deployment and ControllerRevision, and of the Job that asks for its model."""
    return f"{service['metadata']['name']}-{revision}"


def fill_name(service: Obj, revision: str) -> str:
    """Name of the Job that fetches a revision's model into a claim: at most 63 letters, as for any Job."""
    return f"{revision_name(service, revision)}-f"


def replica_labels(service: Obj) -> dict[str, str]:
    """Labels that select all replicas of a service."""
    return {
        contract.LABEL_SERVICE: service["metadata"]["name"],
        contract.LABEL_COMPONENT: contract.COMPONENT_REPLICA,
    }


def render_child(service: Obj, kind: Kind, name: str, labels: dict[str, str] | None = None) -> Obj:
    """Return the head of a child: its kind, name, labels and owner. The parent's labels are never copied."""
    metadata = service["metadata"]
    owner = {
        "apiVersion": f"{contract.GROUP}/{contract.VERSION}",
        "kind": contract.KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {
                contract.LABEL_SERVICE: metadata["name"],
                "app.kubernetes.io/managed-by": "millrace",
                **(labels or {}),
            },
            "ownerReferences": [owner],
        },
    }


def seal(obj: Obj) -> Obj:
    """Return `obj` with the hash of itself in its annotations."""
    digest = hashlib.sha256(_write(obj)).hexdigest()[:16]
    metadata = obj["metadata"]
    return {
        **obj,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), APPLIED: digest}},
    }


def _write(obj: Obj) -> bytes:
    """Return `obj` as `json` writes it, or every seal would change. orjson takes a seventh of the time."""
    try:
        content = orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a whole number beyond 64 bits
        content = b"\x7f"
    if content.isascii() and not _OTHERWISE.search(content):
        return content
    return json.dumps(obj, sort_keys=True, separators=(",", ":")).encode()


def has_drifted(desired: Any, observed: Any) -> bool:
    """Whether some field of `desired` is absent or different in `observed`."""
    if isinstance(desired, dict):
        # The API server leaves out what is empty.
        if not isinstance(observed, dict):
            return bool(desired)
        return any(has_drifted(value, observed.get(key)) for key, value in desired.items())
    if isinstance(desired, list):
        return _has_list_drifted(desired, observed)
    return bool(desired != observed) and not _are_equal_quantities(desired, observed)


def _has_list_drifted(desired: list[Any], observed: Any) -> bool:
    if not isinstance(observed, list):
        return bool(desired)
    if all(isinstance(item, dict) and "name" in item for item in desired):
        by_name = {item.get("name"): item for item in observed if isinstance(item, dict)}
        return any(has_drifted(item, by_name.get(item["name"])) for item in desired)
    pairs = zip(desired, observed, strict=False)
    return len(desired) != len(observed) or any(has_drifted(ours, theirs) for ours, theirs in pairs)


def _are_equal_quantities(desired: Any, observed: Any) -> bool:
    """Whether both are the same amount. The API server writes `1000m` as `1`."""
    try:
        return parse_quantity(str(desired)) == parse_quantity(str(observed))
    except ValueError:
        return False


def is_there(_: Obj) -> bool:
    """Whether the mere existence of an object is enough."""
    return True


@dataclass(frozen=True)
class Need:
    """An object that must exist before another one is created."""

    id: ObjectId
    is_met: Callable[[Obj], bool] = is_there
    """Whether the object is as it must be: a Job, for example, must be complete."""


@dataclass(frozen=True)
class Child:
    """An object that is to exist, and its needs."""

    obj: Obj
    needs: tuple[Need, ...] = ()
    is_optional: bool = False
    """Whether the rest of the plan goes on if this object can't be created for any reason."""

    @property
    def id(self) -> ObjectId:
        """Its kind and name."""
        return object_id(self.obj)


def need(*objects: Obj) -> tuple[Need, ...]:
    """Return the needs for the existence of these objects."""
    return tuple(Need(object_id(obj)) for obj in objects)


def find_unmet(needs: Iterable[Need], standing: Mapping[ObjectId, Obj]) -> tuple[ObjectId, ...]:
    """Return the needed objects that are missing or unfit. `standing` are our own objects now."""
    return tuple(each.id for each in needs if each.id not in standing or not each.is_met(standing[each.id]))
