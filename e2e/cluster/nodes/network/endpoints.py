"""Which address and port a Service's connection goes to: ready pods by its selector. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

Object = dict[str, Any]


class Endpoint(NamedTuple):
    """Where a TCP connection goes."""

    address: str
    port: int


def is_pod_ready(pod: Object) -> bool:
    """Return whether a pod is Ready and not being deleted."""
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def can_proxy(service: Object) -> bool:
    """Return whether a Service has a ClusterIP and a selector; headless and ExternalName ones lack them."""
    spec = service["spec"]
    return spec.get("clusterIP") not in (None, "", "None") and bool(spec.get("selector"))


def tcp_ports(service: Object) -> list[Object]:
    """Return the Service's TCP ports, the only ones that the proxy carries."""
    return [port for port in service["spec"].get("ports", ()) if port.get("protocol", "TCP") == "TCP"]


def select_backends(service: Object, port: Object, pods: Iterable[Object]) -> list[Endpoint]:
    """Return where a connection to the Service's port may go, in a stable order."""
    selected = [
        (pod["status"]["podIP"], _target_port(port, pod)) for pod in pods if _is_selected(service, pod)
    ]
    return sorted(Endpoint(address, number) for address, number in selected if number is not None)


def _is_selected(service: Object, pod: Object) -> bool:
    labels = pod["metadata"].get("labels", {})
    return (
        pod["metadata"]["namespace"] == service["metadata"]["namespace"]
        and all(labels.get(key) == value for key, value in service["spec"]["selector"].items())
        and bool(pod.get("status", {}).get("podIP"))
        and (is_pod_ready(pod) or bool(service["spec"].get("publishNotReadyAddresses")))
    )


def _target_port(port: Object, pod: Object) -> int | None:
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    named = (each for box in pod["spec"]["containers"] for each in box.get("ports", ()))
    return next((each["containerPort"] for each in named if each.get("name") == target), None)
