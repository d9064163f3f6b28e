"""What the gateway reads of InferenceService and Pod objects. Pure; unknown fields are ignored."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace_kubernetes.durations import parse_duration
from millrace_kubernetes.model_names import read_running_name, read_served_name
from millrace_runtime.contract import ANNOTATION_LEAVING, CONTAINER_REPLICA, FLAG_SERVED_NAME, LABEL_SERVICE

Object = Mapping[str, Any]
"""A Kubernetes object as JSON gives it."""


class ServiceKey(NamedTuple):
    """Names one service in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Service:
    """An InferenceService, as far as routing goes."""

    key: ServiceKey
    uid: str
    created: str
    """creationTimestamp: RFC 3339 in UTC, so it sorts as text."""
    served_name: str
    """The model name in its spec. Replicas that are older than an edit answer to another."""
    state: str
    """Why it is not ready, in one word of its Ready condition; empty when ready or unknown.

    Whoever calls it is told. The condition's message names pods, nodes and registries, so it is not.
    """
    hold_seconds: float = 0.0
    """How long a request waits where there is no replica; 0: it is refused at once."""

    @property
    def age_rank(self) -> tuple[str, str]:
        """Sorts services from the oldest on; the uid decides within a second."""
        return (self.created, self.uid)


@dataclass(frozen=True)
class Replica:
    """A pod that serves."""

    uid: str
    key: ServiceKey
    pod: str
    address: str
    is_ready: bool
    """Ready, with an address, and not being deleted."""
    is_leaving: bool = False
    """Marked to go: it gets new requests only where its service has no other replica."""
    served_name: str | None = None
    """The model name that it answers to; None where its pod doesn't say: requests go to it as they came."""
    ready_at: float = -math.inf
    """When it was seen to become Ready, by the gateway's steady clock; -inf if it was there before."""


def read_service(item: Object) -> Service:
    """Read an InferenceService. Raises KeyError where it lacks a name: the API server sends none such."""
    metadata = item["metadata"]
    return Service(
        key=read_key(item),
        uid=metadata.get("uid", ""),
        created=metadata.get("creationTimestamp") or "",
        served_name=read_served_name(item),
        state=_find_cause(_find_condition(item, "Ready")),
        hold_seconds=_read_hold(item),
    )


def read_replica(item: Object) -> Replica | None:
    """Read a replica's Pod; None when it is labelled for no service."""
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
    )


def read_key(item: Object) -> ServiceKey:
    """Read an object's namespace and name."""
    metadata = item["metadata"]
    return ServiceKey(metadata["namespace"], metadata["name"])


def _read_hold(item: Object) -> float:
    """Return how long requests of a service that may have no replica wait for one."""
    scaling = (item.get("spec") or {}).get("scaling") or {}
    if scaling.get("mode", "Automatic") != "Automatic" or scaling.get("minReplicas", 1) != 0:
        return 0.0
    try:
        return parse_duration((scaling.get("activation") or {}).get("maxWait", "5m"))
    except (ValueError, TypeError):  # of a newer version
        return 300.0


def _find_condition(item: Object, kind: str) -> Object:
    conditions = (item.get("status") or {}).get("conditions") or ()
    found: Object = next((c for c in conditions if c.get("type") == kind), {})
    return found


def _find_cause(condition: Object) -> str:
    return "" if condition.get("status") == "True" else str(condition.get("reason") or "")
