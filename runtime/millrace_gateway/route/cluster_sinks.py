"""Follows the cluster's services and replicas, and passes each change to the catalogue and the metrics."""

from collections.abc import Callable, Collection, Sequence

from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import Object, ServiceKey, read_key
from millrace_kubernetes.collection import Source, collection_path
from millrace_runtime.contract import COMPONENT_REPLICA, GROUP, LABEL_COMPONENT, PLURAL, VERSION


class ServiceSink:
    """Follows the services of a namespace, None: of all.

    After each change it calls the `followers` with all services, so that metrics of deleted services end and
    those of new ones start at zero. Then it calls `on_news` with the changed services, None: any.
    """

    def __init__(
        self,
        namespace: str | None,
        catalogue: Catalogue,
        followers: Sequence[Callable[[frozenset[ServiceKey]], None]],
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

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all services with this complete list."""
        self._catalogue.replace_services(items, self._namespace)
        self._notify(None)
        self._lifecycle.note_sync(self.source.path)

    def apply(self, item: Object) -> None:
        """Add a service, or replace it with this newer version."""
        self._catalogue.apply_service(item)
        self._notify([read_key(item)])

    def delete(self, item: Object) -> None:
        """Remove a service."""
        self._catalogue.delete_service(item)
        self._notify([read_key(item)])

    def _notify(self, changed: Collection[ServiceKey] | None) -> None:
        keys = self._catalogue.keys
        for follow in self._followers:
            follow(keys)
        self._on_news(changed)


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

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all replicas with this complete list."""
        self._catalogue.replace_replicas(items, self._namespace)
        self._lifecycle.note_sync(self.source.path)
        self._on_news(None)

    def apply(self, item: Object) -> None:
        """Add a replica, or replace it with this newer version."""
        key = self._catalogue.apply_replica(item)
        if key is not None:
            self._on_news([key])

    def delete(self, item: Object) -> None:
        """Remove a replica."""
        self._catalogue.delete_replica(item)


def _services_in(namespace: str | None) -> Source:
    return Source(collection_path(f"/apis/{GROUP}/{VERSION}", PLURAL, namespace))


def _replicas_in(namespace: str | None) -> Source:
    return Source(collection_path("/api/v1", "pods", namespace), f"{LABEL_COMPONENT}={COMPONENT_REPLICA}")
