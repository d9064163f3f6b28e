"""The cache as the reconcile loop writes to it: each real change makes an event due."""

from millrace_operator.cluster.kinds import Kind, Obj
from millrace_operator.ingest.cache import Cache, Key
from millrace_operator.ingest.handlers import Ingest


class WriteThrough:
    """Puts what a write returned into the cache, and tells `ingest` that the watch must show it too."""

    def __init__(self, cache: Cache, ingest: Ingest) -> None:
        self._cache = cache
        self._ingest = ingest

    def service(self, key: Key) -> Obj | None:
        """Return the service, or None."""
        return self._cache.service(key)

    def children(self, key: Key) -> tuple[Obj, ...]:
        """Return the objects that carry the service's label, pods left out."""
        return self._cache.children(key)

    def pods(self, key: Key) -> tuple[Obj, ...]:
        """Return the pods that carry the service's label."""
        return self._cache.pods(key)

    def put(self, obj: Obj) -> None:
        """Take in what a write returned."""
        if self._cache.put(obj):
            self._ingest.expect()

    def drop(self, kind: Kind, namespace: str, name: str) -> None:
        """Forget an object."""
        self._cache.drop(kind, namespace, name)
