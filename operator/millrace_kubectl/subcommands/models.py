"""`kubectl millrace models`: the models of services, with their places, sizes and users."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from millrace_fit.units import show_bytes
from millrace_kubectl.kubectl import Obj, Services
from millrace_kubectl.wording import align
from millrace_runtime import contract

SUMMARY = "the models, with their places, sizes and users"
DESCRIPTION = """List the models of the namespace's services, and of earlier revisions those that a claim
or nodes may still have. It needs the right to list inferenceservices and controllerrevisions. With the right
to list nodes it shows which of them keep a model. It looks into no volume."""
TITLES = ("NAMESPACE", "MODEL", "REVISION", "SIZE", "KEPT", "USED BY")
NOTHING = "no service has a model yet"
EACH_POD = "by each pod"
ON_NODES = "on nodes"
IMAGE = "in the image"
_MOST_NODES = 3
_SHORT = 12
"""Letters of a revision, as git shows it."""


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser("models", help=SUMMARY, description=DESCRIPTION)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="those of all namespaces")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """Return the table. Raises PluginError."""
    everywhere = arguments.all_namespaces
    found = services.list_all(everywhere=everywhere)
    revisions = services.list_revisions(everywhere=everywhere)
    nodes = services.list_nodes() if is_any_on_nodes(revisions) else None
    return render_models(found, revisions, nodes, has_namespaces=everywhere)


class Place(NamedTuple):
    """One model at one place."""

    namespace: str
    model: str
    revision: str
    size: str
    kept: str


@dataclass
class Users:
    """The services of a model."""

    now: set[str] = field(default_factory=set)
    earlier: set[str] = field(default_factory=set)
    """Services with an earlier revision of it: a rollback serves it again."""

    def describe(self) -> str:
        """Return the services that use it, or else those that may use it again."""
        return ", ".join(sorted(self.now)) or f"(earlier: {', '.join(sorted(self.earlier))})"


def is_any_on_nodes(revisions: Iterable[Obj]) -> bool:
    """Whether nodes keep the model of a revision on their own disks."""
    return any(_read(one.get("data"), "cache", "claimName") == contract.CLAIM_KEPT for one in revisions)


def render_models(
    services: Sequence[Obj], revisions: Iterable[Obj], nodes: Sequence[Obj] | None, *, has_namespaces: bool
) -> str:
    """Return a table with a line for each model and place. `nodes` is None if the user may not list them."""
    found = _gather({_name(one): one for one in services}, revisions, nodes)
    rows = [(*place, users.describe()) for place, users in sorted(found.items())]
    if not rows:
        return NOTHING
    first = 0 if has_namespaces else 1
    return "\n".join(align([TITLES[first:], *(row[first:] for row in rows)]))


def _gather(
    services: dict[tuple[str, str], Obj], revisions: Iterable[Obj], nodes: Sequence[Obj] | None
) -> dict[Place, Users]:
    found: dict[Place, Users] = {}
    for revision in revisions:
        metadata = revision["metadata"]
        labels = metadata.get("labels") or {}
        owner = (metadata.get("namespace", ""), labels.get(contract.LABEL_SERVICE, ""))
        service, place = services.get(owner), _read_place(revision, nodes)
        if service is None or place is None or labels.get(contract.LABEL_PENDING) == "true":
            continue
        is_used = labels.get(contract.LABEL_REVISION) in _list_used(service)
        if is_used or _is_kept(revision):
            users = found.setdefault(place, Users())
            (users.now if is_used else users.earlier).add(owner[1])
    return found


def _list_used(service: Obj) -> set[Any]:
    status: Obj = service.get("status") or {}
    return {status[name] for name in ("currentRevision", "updateRevision") if name in status}


def _is_kept(revision: Obj) -> bool:
    """Whether the model stays when no pod uses it any more."""
    return "cache" in (revision.get("data") or {})


def _read_place(revision: Obj, nodes: Sequence[Obj] | None) -> Place | None:
    """Return the place of a revision's model; None if the revision has no model."""
    data = revision.get("data") or {}
    uri = _read(data, "inputs", "model", "uri")
    if not isinstance(uri, str):
        return None
    commit, size = _read(data, "model", "revision"), _read(data, "model", "numBytes")
    namespace = revision["metadata"].get("namespace", "")
    return Place(
        namespace,
        uri,
        _shorten(commit) if isinstance(commit, str) else "-",
        show_bytes(size) if isinstance(size, int) else "-",
        _describe_place(namespace, data, uri, nodes),
    )


def _describe_place(namespace: str, data: Obj, uri: str, nodes: Sequence[Obj] | None) -> str:
    claim, path, parts = _read(data, "cache", "claimName"), _read(data, "cache", "path"), urlsplit(uri)
    if claim == contract.CLAIM_KEPT:
        return _describe_nodes(contract.name_kept(namespace, str(path)), nodes)
    if claim is not None:
        return f"claim {claim}, {path}"
    if parts.scheme == "pvc":
        return f"claim {parts.netloc}, {parts.path.lstrip('/')}"
    return IMAGE if parts.scheme == "file" else EACH_POD


def _describe_nodes(kept: str, nodes: Sequence[Obj] | None) -> str:
    """Return the nodes with the complete model, by their labels."""
    if nodes is None:
        return ON_NODES
    label = f"{contract.LABEL_KEPT_ON_NODE}{kept}"
    names = sorted(one["metadata"]["name"] for one in nodes if label in (one["metadata"].get("labels") or {}))
    shown, others = names[:_MOST_NODES], len(names) - _MOST_NODES
    more = f" and {others} more" if others > 0 else ""
    return f"{ON_NODES}: {', '.join(shown) or 'none now'}{more}"


def _shorten(revision: str) -> str:
    return revision.removeprefix("sha256:")[:_SHORT]


def _read(data: Any, *path: str) -> Any:
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _name(obj: Obj) -> tuple[str, str]:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
