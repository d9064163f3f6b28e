"""Reads gateways' pods: which there are, and where they listen. Pure."""

from collections.abc import Sequence

from millrace_kubernetes.collection import Object
from millrace_runtime.contract import PATH_LOADS, PORT_GATEWAY, PORT_NAME_HTTP


class GatewaySink:
    """Keeps the gateways that may have requests, as a watch reports them."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        """Of each gateway's stream, by its pod's uid."""

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all gateways with this complete list."""
        self.urls = {uid: url for item in items for uid, url in _read(item)}

    def apply(self, item: Object) -> None:
        """Add a gateway, or replace it with this newer version."""
        self.delete(item)
        self.urls |= dict(_read(item))

    def delete(self, item: Object) -> None:
        """Remove a gateway."""
        self.urls.pop(item["metadata"]["uid"], None)


def _read(pod: Object) -> list[tuple[str, str]]:
    """Return the uid and URL of a gateway that is Ready, or going: before and after, it has no requests."""
    status = pod.get("status") or {}
    address = status.get("podIP")
    is_ready = any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ()
    )
    is_going = "deletionTimestamp" in pod["metadata"] and status.get("phase") == "Running"
    if not address or not (is_ready or is_going):
        return []
    host = f"[{address}]" if ":" in address else address
    return [(pod["metadata"]["uid"], f"http://{host}:{_find_port(pod)}{PATH_LOADS}")]


def _find_port(pod: Object) -> int:
    containers = (pod.get("spec") or {}).get("containers") or ()
    ports = [port for container in containers for port in container.get("ports") or ()]
    named = (int(port["containerPort"]) for port in ports if port.get("name") == PORT_NAME_HTTP)
    return next(named, PORT_GATEWAY)
