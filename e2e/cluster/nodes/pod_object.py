"""One pod as the API server has it: its newest version, its status, its deletion."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import aiohttp

from e2e.cluster.nodes.kube import STRATEGIC_PATCH, KubeClient
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
RETRY_SECONDS = 1.0


class PodObject:
    """Keeps the pod's status as `render` gives it for the newest version."""

    def __init__(self, client: KubeClient, pod: Object, render: Callable[[Object], Object]) -> None:
        self.newest = pod
        self.uid: str = pod["metadata"]["uid"]
        self._client = client
        self._render = render
        self._changed = asyncio.Event()
        self._written: Object | None = None
        self._path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    def note_change(self) -> None:
        """Note that the status is different; `write_changes` writes it."""
        self._changed.set()

    async def write_changes(self) -> None:
        """Write the status after each change; never returns."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write_status()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                if is_gone(error):
                    continue
                log.warning("status of %s: %s", self._path, error)
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def delete(self, *, with_status: bool) -> None:
        """Delete the pod, its last status first where wanted; again until the API server took it."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while True:
            try:
                if with_status:
                    await self._write_last_status()
                await self._client.delete(self._path, body)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                if is_gone(error):
                    return
                log.warning("deleting %s: %r", self._path, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _write_last_status(self) -> None:
        try:
            await self._write_status()
        except ApiError as error:
            log.info("the last status of %s: %s", self._path, error)

    async def _write_status(self) -> None:
        status = self._render(self.newest)
        if status == self._written:
            return
        body = {"metadata": {"uid": self.uid}, "status": _as_patch(status)}
        self.newest = await self._client.patch(f"{self._path}/status", body, STRATEGIC_PATCH)
        self._written = status


def is_gone(error: Exception) -> bool:
    """Return whether the API server knows the pod no more: none of its name, or another one."""
    return isinstance(error, ApiError) and error.status in (404, 409)


def _as_patch(status: Object) -> Object:
    """Return the status as a strategic merge patch, in which our podIPs replace what is there."""
    return status | {"podIPs": [*status.get("podIPs", ()), {"$patch": "replace"}]}
