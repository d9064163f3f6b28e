"""Posts Events as a kubelet does: the same one again only raises its count."""

import asyncio
import logging
import uuid
from datetime import UTC, datetime
from typing import Any

import aiohttp

from e2e.cluster.nodes.kube import KubeClient
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
_KEPT = 2000


def timestamp(now: datetime | None = None) -> str:
    """RFC 3339 in whole seconds, as in a Kubernetes status."""
    return (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class EventRecorder:
    """Events wait in a queue; `run` posts them, so that pods never wait for the API server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._queue: asyncio.Queue[tuple[Object, str, str, str, str]] = asyncio.Queue()
        self._posted: dict[tuple[str, ...], Object] = {}

    def emit(self, about: Object, reason: str, message: str, *, node: str, container: str = "") -> None:
        """An event about an object; Normal or Warning follows from the reason."""
        path = f"spec.containers{{{container}}}" if container else ""
        self._queue.put_nowait((about, reason, message[:1000], node, path))

    async def run(self) -> None:
        """Post what is emitted; never returns."""
        while True:
            event = await self._queue.get()
            try:
                await self._post(*event)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                log.info("event %s not posted: %s", event[1], error)

    async def _post(self, about: Object, reason: str, message: str, node: str, path: str) -> None:
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        key = (metadata["uid"], reason, message, path)
        if (known := self._posted.get(key)) is not None:
            known |= {"count": known["count"] + 1, "lastTimestamp": timestamp()}
            body = {"count": known["count"], "lastTimestamp": known["lastTimestamp"]}
            await self._client.patch(
                f"/api/v1/namespaces/{namespace}/events/{known['metadata']['name']}", body
            )
            return
        event = render_event(about, reason, message, node, path)
        await self._client.create(f"/api/v1/namespaces/{namespace}/events", event)
        if len(self._posted) > _KEPT:
            self._posted.clear()
        self._posted[key] = event


_NORMAL = frozenset({"Pulled", "Created", "Started", "Killing", "Starting", "NodeReady", "SandboxChanged"})


def render_event(about: Object, reason: str, message: str, node: str, path: str) -> Object:
    """A v1 Event about an object."""
    metadata, now = about["metadata"], timestamp()
    reference = {"apiVersion": about.get("apiVersion", "v1"), "kind": about["kind"], "fieldPath": path}
    reference |= {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata.get("namespace", "default"),
        },
        "involvedObject": reference,
        "reason": reason,
        "message": message,
        "type": "Normal" if reason in _NORMAL else "Warning",
        "source": {"component": "kubelet", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }
