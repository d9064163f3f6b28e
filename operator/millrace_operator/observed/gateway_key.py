"""The public keys by which replicas know gateways: the one for new revisions, and those in use. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from millrace_operator.kube.kinds import POD, Obj
from millrace_runtime.contract import FLAG_GATEWAY_KEY

_FLAG = f"{FLAG_GATEWAY_KEY}="


class GatewayKey(NamedTuple):
    """The public key of the gateways that a new revision gets."""

    public: str | None
    """None if there is none."""
    fault: str = ""
    """Why there is none, and what to do."""


def list_named_keys(objects: Iterable[Obj]) -> Iterator[str]:
    """Yield the public keys that pods, Deployments and records of revisions name in a container's flags."""
    for obj in objects:
        for container in _find_pod_spec(obj).get("containers") or ():
            words = container.get("args") or ()
            yield from (word.removeprefix(_FLAG) for word in words if word.startswith(_FLAG))


def _find_pod_spec(obj: Obj) -> Mapping[str, list[Obj]]:
    """Return the pod's spec in an object that may have one."""
    holder = obj
    if obj["kind"] != POD.kind:
        holder = (obj.get("data") or obj.get("spec") or {}).get("template") or {}
    spec: Mapping[str, list[Obj]] = holder.get("spec") or {}
    return spec
