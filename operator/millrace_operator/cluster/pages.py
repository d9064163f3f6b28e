"""The pages that a long list comes in. Pure."""

from typing import NamedTuple

from millrace_operator.cluster.compact import compact
from millrace_operator.cluster.errors import TransientError
from millrace_operator.cluster.kinds import Kind, Obj


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
    head = {"apiVersion": kind.api_version, "kind": kind.kind}
    try:
        metadata = answer["metadata"]
        objects = [compact({**head, **kind.trim(item)}) for item in answer.get("items") or ()]
        return Page(objects, metadata.get("continue") or "", int(metadata.get("resourceVersion") or 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TransientError(f"no list of {kind.plural} in the answer: {error!r}") from error
