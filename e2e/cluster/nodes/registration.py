"""Registers a Node and keeps its Lease and conditions fresh."""

import asyncio
import logging
import os
import platform
import socket
from datetime import UTC, datetime
from typing import Any

import aiohttp

from e2e.cluster.nodes.events import timestamp
from e2e.cluster.nodes.kube import STRATEGIC_PATCH, KubeClient
from e2e.cluster.nodes.settings import NodeSpec, Settings
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.5
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Registration:
    """One Node object and its Lease."""

    def __init__(self, client: KubeClient, spec: NodeSpec, settings: Settings, kubelet_port: int) -> None:
        self._client = client
        self._spec = spec
        self._settings = settings
        self._port = kubelet_port
        self._path = f"/api/v1/nodes/{spec.name}"
        self._ready_since = timestamp()

    async def register(self) -> None:
        """Create the Node, or take over the one of this name. Waits for the API server."""
        while True:
            try:
                await self._create()
                await self._write_status(is_ready=True)
                await self._renew_lease()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                log.info("node %s not registered yet: %s", self._spec.name, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def keep_fresh(self) -> None:
        """Renew the Lease, and the status now and then; never returns."""
        timing = self._settings.timing
        beats_per_status = max(int(timing.node_status_period / timing.lease_period), 1)
        beat = 0
        while True:
            await asyncio.sleep(timing.lease_period)
            beat += 1
            try:
                await self._renew_lease()
                if beat % beats_per_status == 0:
                    await self._write_status(is_ready=True)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                log.warning("node %s: %s", self._spec.name, error)
                if isinstance(error, ApiError) and error.status == 404:
                    await self.register()

    async def leave(self) -> None:
        """Write the status once more, as not ready; an API server that is gone is no error."""
        try:
            async with asyncio.timeout(2):
                await self._write_status(is_ready=False)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            log.info("node %s left without saying so: %s", self._spec.name, error)

    async def _create(self) -> None:
        labels = {
            "kubernetes.io/hostname": self._spec.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        }
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._spec.name, "labels": labels}}
        try:
            await self._client.create("/api/v1/nodes", body)
        except ApiError as error:
            if error.status != 409:
                raise

    async def _write_status(self, *, is_ready: bool) -> None:
        await self._client.patch(f"{self._path}/status", {"status": self._status(is_ready)}, STRATEGIC_PATCH)

    def _status(self, is_ready: bool) -> Object:  # noqa: FBT001
        settings = self._settings
        return {
            "capacity": self._spec.capacity,
            "allocatable": self._spec.capacity,
            "conditions": self._conditions(is_ready),
            "addresses": [
                {"type": "InternalIP", "address": settings.kubelet_address},
                {"type": "Hostname", "address": self._spec.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": _node_info(),
        }

    def _conditions(self, is_ready: bool) -> list[Object]:  # noqa: FBT001
        now = timestamp()
        ready = (
            ("KubeletReady", "process node is ready")
            if is_ready
            else ("NodeShutdown", "process node has ended")
        )
        wanted = [
            (kind, "False", "KubeletHasSufficient" + kind.removesuffix("Pressure"), "") for kind in _PRESSURES
        ]
        return [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": self._ready_since if is_ready else now,
            }
            for kind, status, reason, message in [*wanted, ("Ready", str(is_ready), *ready)]
        ]

    async def _renew_lease(self) -> None:
        name, now = self._spec.name, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": int(self._settings.timing.lease_duration),
            "renewTime": now,
        }
        collection = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        try:
            await self._client.patch(f"{collection}/{name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": spec,
            }
            await self._client.create(collection, body)


def _node_info() -> Object:
    kernel = os.uname()
    return {
        "machineID": socket.gethostname(),
        "systemUUID": socket.gethostname(),
        "bootID": "",
        "kernelVersion": kernel.release,
        "osImage": "the host",
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v1.34.0+process",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": _ARCHITECTURES.get(kernel.machine, kernel.machine),
    }
