"""Reads InferenceService and Pod objects into services and replicas. Pure; it ignores unknown fields."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from millrace_kubernetes.durations import parse_duration
from millrace_kubernetes.model_names import read_running_name, read_served_name
from millrace_runtime.contract import (
    ANNOTATION_LEAVING,
    CONTAINER_REPLICA,
    FLAG_GATEWAY_KEY,
    FLAG_SERVED_NAME,
    LABEL_SERVICE,
)

Object = Mapping[str, Any]
"""A Kubernetes object as JSON gives it."""


class ServiceKey(NamedTuple):
    """Names one service in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServiceChanges(NamedTuple):
    """The services that a change has added, and those that it has deleted."""

    added: Collection[ServiceKey] = ()
    deleted: Collection[ServiceKey] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """The fields of an InferenceService that routing needs."""

    key: ServiceKey
    uid: str
    created: str
    """creationTimestamp: RFC 3339 in UTC, so it sorts as text."""
    served_name: str
    """The model name in its spec. Replicas from before an edit have another one."""
    state: str
    """The reason of its Ready condition; empty if it is ready, or unknown.

    Clients see it. They do not see the condition's message, which names pods, nodes and registries.
    """
    hold_seconds: float = 0.0
    """How long a request waits for a first replica; 0: it is refused at once."""
    access: Mapping[str, Any] | None = field(default=None, hash=False)
    """`spec.access` as it is written: who may send requests, and how many."""

    @property
    def age_rank(self) -> tuple[str, str]:
        """Sorts services by age, the oldest first; the uid decides within a second."""
        return (self.created, self.uid)


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod that serves."""

    uid: str
    key: ServiceKey
    pod: str
    address: str
    is_ready: bool
    """Ready, with an address, and not being deleted."""
    is_leaving: bool = False
    """Whether it is marked to leave: it gets new requests only if its service has no other replica."""
    served_name: str | None = None
    """Its model name; None if its pod has none: requests are then forwarded unchanged."""
    ready_at: float = -math.inf
    """When it became Ready, by the gateway's monotonic clock; -inf if it was Ready before the first list."""
    gateway_keys: tuple[str, ...] = ()
    """The public keys by which it verifies gateways' tokens; none: it takes requests without a token."""


def read_service(item: Object) -> Service:
    """Read an InferenceService. Raises KeyError without a name, which the API server never sends."""
    metadata = item["metadata"]
    return Service(
        key=read_key(item),
        uid=metadata.get("uid", ""),
        created=metadata.get("creationTimestamp") or "",
        served_name=read_served_name(item),
        state=_find_cause(_find_condition(item, "Ready")),
        hold_seconds=_read_hold(item),
        access=_read_access(item),
    )


def read_replica(item: Object) -> Replica | None:
    """Read a replica's Pod; None if it has no label of a service."""
    metadata = item["metadata"]
    service = (metadata.get("labels") or {}).get(LABEL_SERVICE)
    if not service:
        return None
    address = (item.get("status") or {}).get("podIP") or ""
    ready = _find_condition(item, "Ready").get("status") == "True"
    return Replica(
        uid=metadata["uid"],
        key=ServiceKey(metadata["namespace"], service),
        pod=metadata["name"],
        address=address,
        is_ready=bool(ready and address and not metadata.get("deletionTimestamp")),
        is_leaving=ANNOTATION_LEAVING in (metadata.get("annotations") or {}),
        served_name=read_running_name(item, CONTAINER_REPLICA, FLAG_SERVED_NAME),
        gateway_keys=_read_gateway_keys(item),
    )


def read_key(item: Object) -> ServiceKey:
    """Read an object's namespace and name."""
    metadata = item["metadata"]
    return ServiceKey(metadata["namespace"], metadata["name"])


def trim_service(item: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an InferenceService that `read_service` reads."""
    spec = item.get("spec") or {}
    model = spec.get("model")
    return {
        "metadata": _keep(item["metadata"], ("namespace", "name", "uid", "creationTimestamp")),
        "spec": _keep(spec, ("scaling", "access"))
        | ({"model": _keep(model, ("servedName",))} if isinstance(model, Mapping) else {}),
        "status": {"conditions": [_find_condition(item, "Ready")]},
    }


def trim_replica(item: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a Pod that `read_replica` reads: a pod of a few kilobytes keeps a tenth of them."""
    metadata = item["metadata"]
    return {
        "metadata": {
            **_keep(metadata, ("namespace", "name", "uid", "deletionTimestamp")),
            "labels": _keep(metadata.get("labels") or {}, (LABEL_SERVICE,)),
            "annotations": _keep(metadata.get("annotations") or {}, (ANNOTATION_LEAVING,)),
        },
        "spec": {"containers": [_keep(_find_container(item), ("name", "args"))]},
        "status": {
            "podIP": (item.get("status") or {}).get("podIP"),
            "conditions": [_find_condition(item, "Ready")],
        },
    }


def _keep(fields: Object, names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _find_container(pod: Object) -> Object:
    containers = (pod.get("spec") or {}).get("containers") or ()
    found: Object = next((one for one in containers if one.get("name") == CONTAINER_REPLICA), {})
    return found


def _read_gateway_keys(pod: Object) -> tuple[str, ...]:
    """Return the values of each FLAG_GATEWAY_KEY, written with a blank or `=`."""
    arguments = [str(one) for one in _find_container(pod).get("args") or ()]
    joined = f"{FLAG_GATEWAY_KEY}="
    return (
        *(value for name, value in pairwise(arguments) if name == FLAG_GATEWAY_KEY),
        *(one.removeprefix(joined) for one in arguments if one.startswith(joined)),
    )


def _read_access(item: Object) -> Object | None:
    access = (item.get("spec") or {}).get("access")
    return access if isinstance(access, Mapping) else None


def _read_hold(item: Object) -> float:
    """Return how long requests wait for a replica of a service that may scale to zero; else 0."""
    scaling = (item.get("spec") or {}).get("scaling") or {}
    if scaling.get("mode", "Automatic") != "Automatic" or scaling.get("minReplicas", 1) != 0:
        return 0.0
    try:
        return parse_duration((scaling.get("activation") or {}).get("maxWait", "5m"))
    except (ValueError, TypeError):  # written by a newer version
        return 300.0


def _find_condition(item: Object, kind: str) -> Object:
    conditions = (item.get("status") or {}).get("conditions") or ()
    found: Object = next((c for c in conditions if c.get("type") == kind), {})
    return found


def _find_cause(condition: Object) -> str:
    return "" if condition.get("status") == "True" else str(condition.get("reason") or "")
