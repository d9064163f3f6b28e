"""The ConfigMaps and Secrets that the environment of a pod's containers names."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

Object = dict[str, Any]
_KINDS = {
    "configMapRef": "configMap",
    "configMapKeyRef": "configMap",
    "secretRef": "secret",
    "secretKeyRef": "secret",
}


class Reference(NamedTuple):
    """A ConfigMap or a Secret of the pod's namespace."""

    kind: str
    """`configMap` or `secret`."""
    name: str


class Source(Protocol):
    """Where the objects come from; None where one does not exist."""

    async def config_map(self, namespace: str, name: str) -> Object | None: ...
    async def secret(self, namespace: str, name: str) -> Object | None: ...


def find_references(pod: Object) -> set[Reference]:
    """Return what the `env` and `envFrom` of all containers name. Pure."""
    spec = pod["spec"]
    return {
        Reference(_KINDS[field], value["name"])
        for container in [*spec.get("initContainers", ()), *spec["containers"]]
        for source in _sources(container)
        for field, value in source.items()
        if field in _KINDS
    }


def _sources(container: Object) -> Iterator[Object]:
    yield from container.get("envFrom", ())
    yield from (entry.get("valueFrom", {}) for entry in container.get("env", ()))


async def fetch_data(source: Source, pod: Object, kind: str) -> dict[str, Mapping[str, str]]:
    """Return the content of the named objects of one kind, by name; what does not exist is left out."""
    fetch = source.secret if kind == "secret" else source.config_map
    found: dict[str, Mapping[str, str]] = {}
    for reference in find_references(pod):
        if reference.kind == kind:
            item = await fetch(pod["metadata"]["namespace"], reference.name)
            if item is not None:
                found[reference.name] = _decode(kind, item.get("data") or {})
    return found


def _decode(kind: str, data: Mapping[str, str]) -> Mapping[str, str]:
    if kind == "configMap":
        return data
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
