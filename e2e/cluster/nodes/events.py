"""Posts Events as a kubelet does: the same one again only raises its count."""

import asyncio
import logging
import uuid
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp

from e2e.cluster.nodes.kube import KubeClient
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
_KEPT = 2000


def timestamp(now: datetime | None = None) -> str:
    """Return a time, or now, in RFC 3339 and whole seconds, as a Kubernetes status has it."""
    return (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Event(NamedTuple):
    about: Object
    reason: str
    message: str
    node: str
    path: str
    """The container in the pod's spec; empty for the object itself."""


class EventRecorder:
    """Events wait in a queue; `run` posts them, so that pods never wait for the API server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._queue: asyncio.Queue[_Event] = asyncio.Queue()
        self._posted: dict[tuple[str, ...], Object] = {}

    def emit(self, about: Object, reason: str, message: str, *, node: str, container: str = "") -> None:
        """Post an event about an object; whether it is Normal or Warning follows from the reason."""
        path = f"spec.containers{{{container}}}" if container else ""
        self._queue.put_nowait(_Event(about, reason, message[:1000], node, path))

    async def run(self) -> None:
        """Post what is emitted; never returns."""
        while True:
            event = await self._queue.get()
            try:
                await self._post(event)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                log.info("event %s not posted: %s", event.reason, error)

    async def _post(self, event: _Event) -> None:
        key = (event.about["metadata"]["uid"], event.reason, event.message, event.path)
        known = self._posted.get(key)
        if known is not None and await self._count_again(known):
            return
        posted = render_event(event)
        await self._client.create(_collection(posted), posted)
        if len(self._posted) > _KEPT:
            self._posted.clear()
        self._posted[key] = posted

    async def _count_again(self, known: Object) -> bool:
        """Raise the count of an event; return False where it has expired at the API server.

        A count that is not taken is not lost: the next one includes it.
        """
        known |= {"count": known["count"] + 1, "lastTimestamp": timestamp()}
        body = {"count": known["count"], "lastTimestamp": known["lastTimestamp"]}
        try:
            await self._client.patch(f"{_collection(known)}/{known['metadata']['name']}", body)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True


def _collection(event: Object) -> str:
    return f"/api/v1/namespaces/{event['metadata']['namespace']}/events"


_NORMAL = frozenset({"Pulled", "Created", "Started", "Killing"})


def render_event(event: _Event) -> Object:
    """Return the v1 Event to post for the first time."""
    about, metadata, now = event.about, event.about["metadata"], timestamp()
    reference = {"apiVersion": about.get("apiVersion", "v1"), "kind": about["kind"], "fieldPath": event.path}
    reference |= {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata.get("namespace", "default"),
        },
        "involvedObject": reference,
        "reason": event.reason,
        "message": event.message,
        "type": "Normal" if event.reason in _NORMAL else "Warning",
        "source": {"component": "kubelet", "host": event.node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": "kubelet",
        "reportingInstance": event.node,
    }
