"""What the nodes ask of the Kubernetes API, as raw dictionaries: requests, and collections in memory."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

from millrace_kubernetes.collection import Object, Source
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.watch import Watch

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_TIMEOUT_SECONDS = 30.0
_MAX_BACKOFF_SECONDS = 1.0  # one machine's own API server needs no longer pause


class KubeClient:
    """Single requests to one API server; each raises ApiError for an error status."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def get(self, path: str) -> Object:
        """GET an object."""
        return await self._request("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        """POST an object to its collection."""
        return await self._request("POST", path, body)

    async def patch(self, path: str, body: Object, kind: str = MERGE_PATCH) -> Object:
        """PATCH an object."""
        return await self._request("PATCH", path, body, kind)

    async def delete(self, path: str, options: Object | None = None) -> Object:
        """DELETE an object, with DeleteOptions as the body."""
        return await self._request("DELETE", path, options)

    async def _request(
        self, method: str, path: str, body: Object | None = None, content_type: str = "application/json"
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        async with self.connection.request(
            method, path, _TIMEOUT_SECONDS, body=data, content_type=content_type
        ) as response:
            answer: Object = await response.json()
            return answer


class Watched:
    """A collection kept up to date in memory; `on_change(old, new)` for each difference."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        on_change: Callable[[Object | None, Object | None], None],
    ) -> None:
        self.is_listed = asyncio.Event()
        self._objects: dict[str, Object] = {}
        self._on_change = on_change
        self._watch = Watch(connection, Source(path), self, max_backoff_seconds=_MAX_BACKOFF_SECONDS)

    @property
    def objects(self) -> Mapping[str, Object]:
        """The collection's objects by uid."""
        return self._objects

    async def run(self) -> None:
        """Follow the collection; never returns."""
        await self._watch.run()

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all objects with this complete list. What fails is raised once all is tried."""
        found = {item["metadata"]["uid"] for item in items}
        gone = [old for uid, old in self._objects.items() if uid not in found]
        changes = [(self.delete, old) for old in gone] + [(self.apply, item) for item in items]
        errors = [error for change, item in changes if (error := _try(change, item)) is not None]
        self.is_listed.set()
        if errors:
            raise ExceptionGroup("not every object of the list was taken", errors)

    def apply(self, item: Object) -> None:
        """Add an object, or replace it with this newer version.

        It is not kept if `on_change` raises: the watch then lists again, which brings the object again.
        """
        metadata = item["metadata"]
        old = self._objects.get(metadata["uid"])
        if old is None or old["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            self._on_change(old, item)
        self._objects[metadata["uid"]] = item

    def delete(self, item: Object) -> None:
        """Remove an object. It stays if `on_change` raises."""
        uid = item["metadata"]["uid"]
        if (old := self._objects.get(uid)) is not None:
            self._on_change(old, None)
            del self._objects[uid]


def _try(change: Callable[[Object], None], item: Object) -> Exception | None:
    """Make a change, or return why not."""
    try:
        change(item)
    except Exception as error:  # noqa: BLE001  replace raises them all
        return error
    return None
