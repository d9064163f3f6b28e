"""The whole operator, Kopf's watch included, on the faulty API server, with the controllers of a `World`.

Several may run side by side in a process, each with a server of its own. What is patched for all of them asks
the context for what is of one.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import kopf
import pytest
import yaml
from aiohttp import web

from millrace_kubernetes.connection import Connection
from millrace_operator.app.application import Application, OperatorSettings
from millrace_operator.app.metrics import Metrics
from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings
from millrace_operator.controller import plan, relister, watches
from millrace_operator.controller.relister import Round
from millrace_operator.kube.connection import ApiServer
from millrace_operator.kube.credentials import Access, load_access
from millrace_operator.kube.kinds import CHILDREN, INFERENCE_SERVICE, POD, Kind, Obj, ObjectKey
from millrace_operator.kube.lease import LeaseView
from millrace_operator.render.settings import RenderSettings
from millrace_operator.scaling import drain
from testing.world import KEY, World, make_service
from tests.operator.faulty.history import History
from tests.operator.faulty.script import Fault, Script
from tests.operator.faulty.server import FaultyServer

SETTINGS = OperatorSettings(
    render=RenderSettings(),
    scaling=ScalingSettings(PrometheusSettings("http://127.0.0.1:9")),
    namespace="millrace-system",
    identity="test",
    bind_address="127.0.0.1",
    port=0,
    workers=2,
)
EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
PAUSE_SECONDS = 0.1
LATE_SECONDS = 0.02
"""Controllers act so long after a change."""
Found = TypeVar("Found")
KUBECONFIG: ContextVar[Path] = ContextVar("KUBECONFIG")
RELIST: ContextVar[asyncio.Event] = ContextVar("RELIST")
ENVIRONMENT = threading.Lock()
"""Held while the environment names the kubeconfig of one operator."""


class ContextThreads(ThreadPoolExecutor):
    """Threads that know the context in which they were asked: Kopf's, in which it logs in."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        return super().submit(copy_context().run, fn, *args, **named)


class Running:
    """One operator that runs, and the cluster that it looks after."""

    def __init__(self, world: World, store: History, server: FaultyServer, application: Application) -> None:
        self.world = world
        self.store = store
        self.server = server
        self.application = application
        self.relist = asyncio.Event()
        """Set it to let ten minutes be over: everything is listed again."""

    @property
    def script(self) -> Script:
        return self.server.script

    async def run_controllers(self) -> None:
        """Let Deployments get their pods, and pods become Ready, until cancelled."""
        while True:
            next_change = self.store.next_change
            self.world.now = time.time()
            if not self.world.run_controllers():
                await next_change.wait()
            await asyncio.sleep(LATE_SECONDS)

    def is_watching(self) -> bool:
        """Whether the services are watched, and not only listed."""
        return f"WATCH {INFERENCE_SERVICE.path(None)}" in self.server.requests

    def remove_child(self, name: str) -> None:
        """Delete the children of a name, as a user does."""
        for kind in CHILDREN:
            self.store.remove(kind, KEY.namespace, name)

    def touch(self, kind: Kind, name: str) -> None:
        """Change an object as somebody does who annotates it."""
        obj = self.store.objects[ObjectKey(kind.kind, KEY.namespace, name)]
        annotations = {**obj["metadata"].get("annotations", {}), "touched": "yes"}
        self.store.put({**obj, "metadata": {**obj["metadata"], "annotations": annotations}})

    def find_trouble(self) -> str:
        """Return what is not yet as the spec wants it; empty where everything is."""
        world, status = self.world, self.world.status
        revision, desired = status.get("updateRevision", ""), world.service["spec"]["replicas"]
        if world.service["metadata"]["generation"] != status.get("observedGeneration"):
            return "the status is of an older spec"
        if status.get("currentRevision") != revision or world.condition("Progressing")["status"] != "False":
            return "the rollout goes on"
        if world.condition("Ready")["status"] != "True" or world.condition("Degraded")["status"] != "False":
            return f"{status['conditions']}"
        if world.deployments() != {revision: desired} or len(world.objects("Pod")) != desired:
            return f"{world.deployments()} and {len(world.objects('Pod'))} pods for {desired}"
        return self._find_wrong_children() or self._find_ghosts()

    def _find_wrong_children(self) -> str:
        world = self.world
        counts = {kind.kind: len(world.objects(kind.kind)) for kind in CHILDREN}
        wanted = {"ServiceAccount": 1, "Service": 2, "PodDisruptionBudget": 1, "Deployment": 1, "Job": 0}
        wanted["ControllerRevision"] = counts["ControllerRevision"] or 1
        uid = world.service["metadata"]["uid"]
        owners = {
            owner["uid"]
            for kind in CHILDREN
            for child in world.objects(kind.kind)
            for owner in child["metadata"]["ownerReferences"]
        }
        return "" if (counts, owners) == (wanted, {uid}) else f"{counts} of {owners}"

    def _find_ghosts(self) -> str:
        """What the operator believes that is not so: objects that are gone, or that it has not seen."""
        cache, kinds = self.application.cache, {POD.kind, *(kind.kind for kind in CHILDREN)}
        known = {
            ObjectKey(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
            for obj in (*cache.children(KEY), *cache.pods(KEY))
        }
        there = {key for key in self.store.objects if key.kind in kinds}
        return "" if known == there else f"the operator is wrong about {known ^ there}"


@contextmanager
def hurried_operators() -> Iterator[None]:
    """Let operators that run meanwhile wait for tenths of seconds, and find the server of their context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        patch.setattr(kopf, "login_with_kubeconfig", with_kubeconfig(kopf.login_with_kubeconfig))
        patch.setattr(watches, "ThreadPoolExecutor", ContextThreads)
        patch.setattr(watches, "RESTART_SECONDS", PAUSE_SECONDS)
        patch.setattr(drain, "SILENT_SECONDS", PAUSE_SECONDS)
        patch.setattr(plan, "DRAIN_LOOK_SECONDS", PAUSE_SECONDS)
        patch.setattr(watches, "RESOURCE_RETRY_SECONDS", PAUSE_SECONDS)
        patch.setattr(relister, "wait_for_round", wait_for_relist)
        yield


def with_kubeconfig(read: Callable[..., Found]) -> Callable[..., Found]:
    """Let a function that reads the environment's kubeconfig find that of its context."""

    def read_own(*args: Any, **named: Any) -> Found:
        with ENVIRONMENT, pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(KUBECONFIG.get()))
            return read(*args, **named)

    return read_own


async def wait_for_relist(*_: object) -> Round:
    relist = RELIST.get()
    await relist.wait()
    relist.clear()
    return Round.EVERYTHING


@asynccontextmanager
async def run_operator(folder: Path, faults: Iterable[tuple[Fault, str]] = ()) -> AsyncIterator[Running]:
    """Run an operator on a new API server with one service, and with these faults from the start.

    Another service stands before it in every list. So the one that is looked at is on a second page. To be
    entered within `hurried_operators`.
    """
    store = History()
    world = World()
    world.cluster = store
    store.put(make_other())
    store.put(make_service(scaling=EXTERNAL, replicas=1))
    server = FaultyServer(store)
    for fault, plural in faults:
        server.script.add(fault, plural)
    async with serve(server) as url:
        KUBECONFIG.set(_write_kubeconfig(folder, url))
        async with _run_application(world, store, server) as running:
            yield running


def make_other() -> Obj:
    """Return a service that nobody can serve: it has a status and no children."""
    other = make_service(model={})
    return {**other, "metadata": {**other["metadata"], "name": "another"}}


@asynccontextmanager
async def serve(server: FaultyServer) -> AsyncIterator[str]:
    """Yield the server's URL while it answers there."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _run_application(world: World, store: History, server: FaultyServer) -> AsyncIterator[Running]:
    view = LeaseView(SETTINGS.identity, SETTINGS.namespace, "millrace-operator")
    access = await asyncio.to_thread(with_kubeconfig(_load_access))
    async with (
        ApiServer(access, seconds_to_write=lambda: view.seconds_to_write(time.monotonic())) as cluster,
        aiohttp.ClientSession() as session,
    ):
        application = Application(SETTINGS, cluster, view, Metrics())
        application.queue._pause_seconds = PAUSE_SECONDS
        running = Running(world, store, server, application)
        RELIST.set(running.relist)
        tasks = [
            asyncio.create_task(application.run(Connection(session, access))),
            asyncio.create_task(running.run_controllers()),
        ]
        try:
            yield running
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended


def _load_access() -> Access:
    return asyncio.run(load_access())


def _write_kubeconfig(folder: Path, url: str) -> Path:
    names = {"cluster": "c", "user": "u", "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": names}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path
