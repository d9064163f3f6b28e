"""What the API server's answers hold. Pure.

A proxy in between may answer with JSON of its own, a Status among it. So an answer is believed only where it
has what each object or list has that the API server stores. No more is looked at: each write has an answer.
"""

from typing import Any, NamedTuple

from millrace_operator.kube.compact import compact
from millrace_operator.kube.errors import TransientError
from millrace_operator.kube.kinds import Kind, Obj


class Page(NamedTuple):
    """A part of a list."""

    objects: list[Obj]
    """Made compact, with apiVersion and kind in each."""
    token: str
    """Which page is next; empty after the last one."""
    version: int
    """The list's resourceVersion."""


def read_page(kind: Kind, answer: Obj) -> Page:
    """Return the page that an answer holds. Raises TransientError where it is none."""
    head, items = {"apiVersion": kind.api_version, "kind": kind.kind}, answer.get("items", "")
    if not isinstance(items, list | None):
        raise TransientError(f"no list of {kind.plural} in the answer: {str(answer)[:200]}")
    try:
        metadata = answer["metadata"]
        objects = [compact({**head, **kind.trim(item)}) for item in items or ()]
        return Page(objects, metadata.get("continue") or "", int(metadata["resourceVersion"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TransientError(f"no list of {kind.plural} in the answer: {error!r}") from error


def read_object(kind: Kind, answer: Obj, request: str) -> Obj:
    """Return an answer that is an object of this kind, as it is stored. Raises TransientError for another."""
    if answer.get("kind") == kind.kind and _is_of_stored(answer.get("metadata")):
        return answer
    raise TransientError(f"{request}: no {kind.kind} in the answer: {str(answer)[:200]}")


def _is_of_stored(metadata: Any) -> bool:
    if not isinstance(metadata, dict):
        return False
    name, uid, version = metadata.get("name"), metadata.get("uid"), metadata.get("resourceVersion")
    return isinstance(name, str) and isinstance(uid, str) and isinstance(version, str) and version.isdecimal()
