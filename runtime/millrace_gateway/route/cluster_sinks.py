"""Follows the cluster's services and replicas, and passes each change to the catalogue and the metrics.

The event loop also carries streams. So a complete list is taken in steps, between which the streams go on.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import orjson

from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import (
    Object,
    ServiceChanges,
    ServiceKey,
    read_key,
    trim_replica,
    trim_service,
)
from millrace_kubernetes.collection import Source, collection_path
from millrace_runtime.contract import COMPONENT_REPLICA, GROUP, LABEL_COMPONENT, PLURAL, VERSION

PAGE = 100
"""Objects of a list that are parsed at once: 8 KB each, 6 ms together."""


class ServiceSink:
    """Follows the services of a namespace, None: of all.

    After each change it calls the `followers`, so that metrics of deleted services end and those of new ones
    start at zero. Then it calls `on_news` with the changed services, None: any.
    """

    def __init__(
        self,
        namespace: str | None,
        catalogue: Catalogue,
        followers: Sequence[Callable[[ServiceChanges], None]],
        lifecycle: Lifecycle,
        on_news: Callable[[Collection[ServiceKey] | None], None],
    ) -> None:
        self.source = _services_in(namespace)
        lifecycle.await_sync(self.source.path)
        self._namespace = namespace
        self._catalogue = catalogue
        self._followers = followers
        self._on_news = on_news
        self._lifecycle = lifecycle

    def replace(self, items: Sequence[Object], _version: str) -> Iterator[None]:
        """Replace all services with this complete list, in short steps."""
        before = self._catalogue.keys
        yield from self._catalogue.replacing_services(map(_unpack, items), self._namespace)
        after = self._catalogue.keys
        self._notify(ServiceChanges(after - before, before - after))
        self._lifecycle.note_sync(self.source.path)
        self._on_news(None)

    def apply(self, item: Object) -> None:
        """Add a service, or replace it with this newer version."""
        key = read_key(item)
        is_new = self._catalogue.find(key) is None
        self._catalogue.apply_service(item)
        if is_new:
            self._notify(ServiceChanges(added=(key,)))
        self._on_news((key,))

    def delete(self, item: Object) -> None:
        """Remove a service."""
        key = read_key(item)
        self._catalogue.delete_service(item)
        self._notify(ServiceChanges(deleted=(key,)))
        self._on_news((key,))

    def _notify(self, changes: ServiceChanges) -> None:
        for follow in self._followers:
            follow(changes)


class ReplicaSink:
    """Follows the replicas of a namespace, None: of all.

    It calls `on_news` after each change that may let a waiting request continue, with the services whose
    replicas have changed, None: any.
    """

    def __init__(
        self,
        namespace: str | None,
        catalogue: Catalogue,
        lifecycle: Lifecycle,
        on_news: Callable[[Collection[ServiceKey] | None], None],
    ) -> None:
        self.source = _replicas_in(namespace)
        lifecycle.await_sync(self.source.path)
        self._namespace = namespace
        self._catalogue = catalogue
        self._lifecycle = lifecycle
        self._on_news = on_news

    def replace(self, items: Sequence[Object], _version: str) -> Iterator[None]:
        """Replace all replicas with this complete list, in short steps."""
        yield from self._catalogue.replacing_replicas(map(_unpack, items), self._namespace)
        self._lifecycle.note_sync(self.source.path)
        self._on_news(None)

    def apply(self, item: Object) -> None:
        """Add a replica, or replace it with this newer version."""
        key = self._catalogue.apply_replica(item)
        if key is not None:
            self._on_news((key,))

    def delete(self, item: Object) -> None:
        """Remove a replica."""
        self._catalogue.delete_replica(item)


def _pack(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a list as one value, which Python's garbage collector does not visit."""
    return {"json": orjson.dumps(item)}


def _unpack(item: Object) -> Object:
    found: Object = orjson.loads(item["json"])
    return found


def _services_in(namespace: str | None) -> Source:
    path = collection_path(f"/apis/{GROUP}/{VERSION}", PLURAL, namespace)
    return Source(path, trim=trim_service, pack=_pack, page=PAGE)


def _replicas_in(namespace: str | None) -> Source:
    path = collection_path("/api/v1", "pods", namespace)
    return Source(path, f"{LABEL_COMPONENT}={COMPONENT_REPLICA}", trim=trim_replica, pack=_pack, page=PAGE)
