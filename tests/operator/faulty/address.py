"""What a request is about: the address of a collection or of an object, and which objects it selects."""

from typing import NamedTuple

from millrace_operator.kube.kinds import BY_NAME, HORIZONTAL_POD_AUTOSCALER, Kind, Obj

NAMESPACE = Kind("", "v1", "Namespace", "namespaces")
DEFINITION = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
UNSPACED = (NAMESPACE, DEFINITION)
"""Kopf begins with nothing before discovery tells of them."""
KINDS = (*BY_NAME.values(), HORIZONTAL_POD_AUTOSCALER, *UNSPACED)


class Address(NamedTuple):
    """A collection, or an object in it where `name` is not empty."""

    kind: Kind
    namespace: str | None
    name: str
    subresource: str

    def holds(self, obj: Obj) -> bool:
        """Whether an object is in the collection."""
        return obj["kind"] == self.kind.kind and self.namespace in (None, obj["metadata"].get("namespace"))


def parse_address(path: str) -> Address | None:
    """Return what a path names; None where there is nothing."""
    words = path.strip("/").split("/")
    version, rest = (words[1], words[2:]) if words[0] == "api" else ("/".join(words[1:3]), words[3:])
    namespace = None
    if len(rest) >= 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "", "")[:3]
    for kind in KINDS:
        if (kind.api_version, kind.plural) == (version, plural):
            return Address(kind, namespace, name, subresource)
    return None


def is_selected(obj: Obj | None, selector: str) -> bool:
    """Whether an object is there and has the label, with its value where the selector names one."""
    if obj is None:
        return False
    name, _, value = selector.partition("=")
    labels = obj["metadata"].get("labels", {})
    return not selector or (name in labels and value in ("", labels[name]))


def describe_api(path: str) -> Obj | None:
    """Return what discovery tells at a path; None where it is no path of discovery."""
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        return {"groups": [_describe_group(kind) for kind in KINDS if kind.group]}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    found = [kind for kind in KINDS if kind.api_version == version]
    return (
        {"groupVersion": version, "resources": [_describe_resource(kind) for kind in found]}
        if found
        else None
    )


def _describe_group(kind: Kind) -> Obj:
    version = {"groupVersion": kind.api_version, "version": kind.version}
    return {"name": kind.group, "versions": [version], "preferredVersion": version}


def _describe_resource(kind: Kind) -> Obj:
    verbs = ["get", "list", "watch", "patch", "create", "delete"]
    return {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "kind": kind.kind,
        "namespaced": kind not in UNSPACED,
        "verbs": verbs,
    }
