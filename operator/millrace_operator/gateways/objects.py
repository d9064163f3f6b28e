"""Reads gateways' pods: which may have requests, and where they listen. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from millrace_kubernetes.collection import Object
from millrace_operator.api.conditions import find_condition, parse_time
from millrace_operator.observed.revisions import LOST_SECONDS
from millrace_runtime.contract import PATH_LOADS, PORT_GATEWAY_METRICS, PORT_NAME_HTTP, PORT_NAME_METRICS


class _Gateway(NamedTuple):
    url: str
    until: float
    """When it is surely gone, in seconds since 1970; infinity while nobody has deleted it."""


class GatewaySink:
    """Keeps the gateways that may have requests, as a watch reports them."""

    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}
        """By their pods' uids."""

    def list_urls(self, now: float) -> dict[str, str]:
        """Return the URL of each gateway's stream, by its pod's uid. `now` is in seconds since 1970."""
        return {uid: gateway.url for uid, gateway in self._gateways.items() if now < gateway.until}

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all gateways with this complete list."""
        self._gateways = {}
        for item in items:
            self.apply(item)

    def apply(self, item: Object) -> None:
        """Add a gateway, or replace it with this newer version."""
        self.delete(item)
        address = (item.get("status") or {}).get("podIP")
        if address and _may_have_requests(item):
            host = f"[{address}]" if ":" in address else address
            url = f"http://{host}:{_find_port(item)}{PATH_LOADS}"
            self._gateways[item["metadata"]["uid"]] = _Gateway(url, _find_end(item))

    def delete(self, item: Object) -> None:
        """Remove a gateway."""
        self._gateways.pop(item["metadata"]["uid"], None)


def _may_have_requests(pod: Object) -> bool:
    """Whether a gateway is Ready, is going, or was Ready: its clients' connections outlive that."""
    status = pod.get("status") or {}
    ready = find_condition(dict(status), "Ready") or {}
    if ready.get("status") == "True":
        return True
    if status.get("phase") != "Running":
        return False
    return "deletionTimestamp" in pod["metadata"] or _was_ready(pod, ready.get("lastTransitionTime"))


def _was_ready(pod: Object, unready_since: str | None) -> bool:
    """Whether it turned unready after its container had begun. One that never was Ready did so before."""
    own = {one.get("name") for one in pod["spec"]["containers"] if PORT_NAME_HTTP in _name_ports(one)}
    statuses = [one for one in pod["status"].get("containerStatuses") or () if one.get("name") in own]
    starts = [((one.get("state") or {}).get("running") or {}).get("startedAt") for one in statuses]
    start = parse_time(starts[0]) if starts else None
    return start is not None and (parse_time(unready_since) or 0.0) > start


def _find_end(pod: Object) -> float:
    """Return when a pod is gone at the latest. On a node that is lost, its object stays for ever."""
    ends = parse_time(pod["metadata"].get("deletionTimestamp"))  # the grace is in it
    return math.inf if ends is None else ends + LOST_SECONDS


def _find_port(pod: Object) -> int:
    """Return where the gateway tells its loads."""
    named = map(_name_ports, (pod.get("spec") or {}).get("containers") or ())
    ports = next((found for found in named if PORT_NAME_HTTP in found), {})
    return ports.get(PORT_NAME_METRICS, PORT_GATEWAY_METRICS)


def _name_ports(container: Object) -> dict[str, int]:
    """Return a container's ports by name. The one with a port for clients is the gateway's own."""
    return {str(port.get("name")): int(port["containerPort"]) for port in container.get("ports") or ()}
