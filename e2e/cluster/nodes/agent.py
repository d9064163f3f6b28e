"""The node process: what it watches, and what each change sets going."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from e2e.cluster.nodes.api_objects import ApiObjects
from e2e.cluster.nodes.claims import ClaimProvisioner
from e2e.cluster.nodes.errors import SettingsError
from e2e.cluster.nodes.events import EventRecorder
from e2e.cluster.nodes.kube import KubeClient, Watched
from e2e.cluster.nodes.logs import ContainerLogs, find_logs
from e2e.cluster.nodes.logs_server import CertificateFiles, LogsServer
from e2e.cluster.nodes.network.addresses import AddressBlock, claim_block
from e2e.cluster.nodes.network.endpoints import Endpoint
from e2e.cluster.nodes.network.proxy import ServiceProxy
from e2e.cluster.nodes.node import Node
from e2e.cluster.nodes.pod_worker import PodWorker
from e2e.cluster.nodes.registration import Registration
from e2e.cluster.nodes.settings import Settings
from millrace_kubernetes.access import load_kubeconfig
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.errors import AccessError

Object = dict[str, Any]
log = logging.getLogger(__name__)


class Agent:
    """Several Nodes in one process."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        probes: aiohttp.ClientSession,
        api_address: Endpoint,
    ) -> None:
        self._settings = settings
        self._client = client
        self._probes = probes
        self._api_address = api_address
        self._events = EventRecorder(client)
        self._workers: dict[str, PodWorker] = {}
        self._endings: set[asyncio.Task[None]] = set()
        connection = client.connection
        self._pods = Watched(connection, "/api/v1/pods", self._on_pod)
        self._services = Watched(connection, "/api/v1/services", self._on_service)
        self._claims = ClaimProvisioner(client, settings.state_dir / "volumes")
        self._claim_list = Watched(connection, "/api/v1/persistentvolumeclaims", self._claims.note_change)
        self._proxy = ServiceProxy(self._pods.objects.values, self._on_unproxied)
        self._services_changed = asyncio.Event()
        self._blocks = [claim_block() for _ in settings.nodes]
        self._nodes = {
            spec.name: self._make_node(spec.name, block)
            for spec, block in zip(settings.nodes, self._blocks, strict=True)
        }
        self.logs = LogsServer(self._find_logs)

    async def run(self, kubelet_port: int) -> None:
        """Register, then do everything side by side until cancelled; leaves no process behind."""
        registrations = [
            Registration(self._client, spec, self._settings, kubelet_port) for spec in self._settings.nodes
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for work in (
                    self._services.run(),
                    self._events.run(),
                    self._follow_services(),
                    self._claims.run(),
                ):
                    group.create_task(work)
                await self._services.is_listed.wait()
                for registration in registrations:
                    await registration.register()
                    group.create_task(registration.keep_fresh())
                for watched in (self._pods, self._claim_list):
                    group.create_task(watched.run())
                group.create_task(self._sweep())
                log.info("nodes %s are ready", ", ".join(self._nodes))
        finally:
            await asyncio.gather(
                *(worker.kill() for worker in self._workers.values()), return_exceptions=True
            )
            await self._proxy.close()
            await asyncio.gather(*(registration.leave() for registration in registrations))
            for block in self._blocks:
                block.close()

    def _make_node(self, name: str, block: AddressBlock) -> Node:
        return Node(
            name=name,
            settings=self._settings,
            client=self._client,
            session=self._probes,
            events=self._events,
            api_objects=ApiObjects(self._client, self._settings.disk_of(name)),
            addresses=block,
            services=self._services,
            api_address=self._api_address,
        )

    def _find_logs(self, namespace: str, pod: str, container: str) -> ContainerLogs | None:
        for uid, known in self._pods.objects.items():
            metadata, node = known["metadata"], self._nodes.get(known["spec"].get("nodeName", ""))
            if node is not None and (metadata["namespace"], metadata["name"]) == (namespace, pod):
                worker = self._workers[uid].find(container) if uid in self._workers else None
                live = worker.running.log if worker is not None and worker.running is not None else None
                return find_logs(node.log_folder(uid, container), live)
        return None

    async def _sweep(self) -> None:
        """Remove the files of pods and claims that went while no node process ran."""
        await self._pods.is_listed.wait()
        for folder in (self._settings.state_dir / "pods").glob("*"):
            if folder.name not in self._pods.objects:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await self._claim_list.is_listed.wait()
        self._claims.sweep()

    def _on_pod(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            assert old is not None
            self._forget(old["metadata"]["uid"])
            return
        node = self._nodes.get(new["spec"].get("nodeName", ""))
        if node is None:
            return
        worker = self._workers.get(new["metadata"]["uid"])
        if worker is not None:
            worker.update(new)
        elif "deletionTimestamp" in new["metadata"] or not _is_over(new):
            worker = self._workers[new["metadata"]["uid"]] = PodWorker(node, new)
            worker.update(new)

    def _forget(self, uid: str) -> None:
        if (worker := self._workers.pop(uid, None)) is not None:
            task = asyncio.create_task(_kill_and_remove(worker))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    def _on_service(self, _: Object | None, __: Object | None) -> None:
        self._services_changed.set()

    async def _follow_services(self) -> None:
        while True:
            await self._proxy.wait_until_due(self._services_changed)
            await asyncio.sleep(0.02)  # a list of many Services is one change
            self._services_changed.clear()
            for worker in self._workers.values():
                worker.refresh_hosts()
            await self._proxy.follow(self._services.objects.values())

    def _on_unproxied(self, service: Object, why: str) -> None:
        metadata = service["metadata"]
        log.warning("service %s/%s: %s", metadata["namespace"], metadata["name"], why)
        about = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
        self._events.emit(about, "FailedToListen", why, node=self._settings.nodes[0].name)


def _is_over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


async def _kill_and_remove(worker: PodWorker) -> None:
    await worker.kill()
    worker.remove()


@contextlib.asynccontextmanager
async def open_agent(settings: Settings) -> AsyncIterator[Agent]:
    """Yield an agent with its connections to the API server. Raises SettingsError without a kubeconfig."""
    try:
        access = load_kubeconfig(settings.kubeconfig)
    except AccessError as error:
        raise SettingsError(f"--kubeconfig: {error}") from error
    server = urlsplit(access.server)
    address = Endpoint(server.hostname or "", server.port or 443)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), headers={"User-Agent": "millrace-node"}
            )
        )
        probes = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True), trust_env=False)
        )
        yield Agent(settings, KubeClient(Connection(session, access)), probes, address)


async def run_agent(settings: Settings, files: CertificateFiles) -> None:
    """Run the nodes until cancelled."""
    async with open_agent(replace(settings, state_dir=settings.state_dir.resolve())) as agent:
        port = await agent.logs.start(settings.kubelet_address, files)
        try:
            await agent.run(port)
        finally:
            await agent.logs.close()
