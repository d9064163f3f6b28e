"""The collection that a watch follows, and the sink that keeps its objects. No I/O here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LIST_PAGE = 500
Object = dict[str, Any]
"""A Kubernetes object as JSON gives it."""


def collection_path(root: str, plural: str, namespace: str | None = None) -> str:
    """Return the path of a collection: in all namespaces, or in one. `root` is such as /api/v1."""
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def _keep_whole(item: Object) -> Object:
    return item


@dataclass(frozen=True)
class Source:
    """A collection to follow."""

    path: str
    """The collection's path, as `/api/v1/pods`."""
    label_selector: str = ""
    """Selects some of its objects; empty for all."""
    trim: Callable[[Object], Object] = _keep_whole
    """Makes an object smaller as soon as it is parsed, so a long list is never in memory as it came."""
    pack: Callable[[Object], Object] = _keep_whole
    """Makes an object of a list smaller still while it waits for the rest of the list."""
    page: int = LIST_PAGE
    """How many objects of a list are read at once."""
    field_selector: str = ""
    """Selects by a field, such as `metadata.name=…`; empty for all."""


class Sink(Protocol):
    """Keeps the objects that a watch reports."""

    def replace(self, items: Sequence[Object], version: str, /) -> Iterator[None] | None:
        """Replace all objects with this complete list, of that resourceVersion.

        A sink whose event loop also carries streams returns steps: the watch lets others run between them,
        and reports nothing else before the last one.
        """

    def apply(self, item: Object, /) -> None:
        """Add an object, or replace it with this newer version."""

    def delete(self, item: Object, /) -> None:
        """Remove an object, given in its last state."""
