"""The leader and real gateways, through a fake API server that has the pods and the Lease."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from millrace_gateway.server import Gateway
from millrace_gateway.settings import Settings
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.connection import Connection
from millrace_operator.gateways import streams as module
from millrace_operator.gateways.streams import Gateways
from millrace_operator.kube.kinds import ServiceKey
from millrace_operator.observed.snapshot import PodLoad
from millrace_runtime.contract import ANNOTATION_LEAVING, ANNOTATION_PROOF
from testing.api_server import FakeApiServer
from testing.gateway_bench import counted
from testing.polling import wait_until_async
from tests.gateway.conftest import PODS, SERVICES, make_pod, make_service

NAMESPACE = "millrace-system"
GATEWAYS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/millrace-operator"
TOKEN = "the leader's"


class Cluster:
    """An API server with a Lease, and gateways that follow it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.api = FakeApiServer()
        self.hash = sha256(TOKEN.encode()).hexdigest()
        self.access: ClusterAccess
        self.ports: dict[str, int] = {}
        self._stack = stack

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(LEASE, self._show_lease)
        app.router.add_get("/{path:.*}", self.api.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.access = ClusterAccess(f"http://127.0.0.1:{runner.addresses[0][1]}", None)

    async def _show_lease(self, _request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"annotations": {ANNOTATION_PROOF: self.hash}}})

    async def add_gateway(self, uid: str) -> Gateway:
        gateway = Gateway(Settings("127.0.0.1", 0))
        sites: Any = await self._stack.enter_async_context(gateway.serve())
        await self._stack.enter_async_context(running(gateway.follow(self.access)))
        self.ports[uid], metrics_port = (site._server.sockets[0].getsockname()[1] for site in sites)
        self.api.put(GATEWAYS, make_gateway_pod(uid, self.ports[uid], metrics_port))
        return gateway


def make_gateway_pod(uid: str, port: int, metrics_port: int) -> dict[str, Any]:
    pod = make_pod(NAMESPACE, "", uid, address="127.0.0.1")
    named = {"http": port, "metrics": metrics_port}
    ports = [{"name": name, "containerPort": number} for name, number in named.items()]
    sidecar = {"name": "mesh", "ports": [{"name": "metrics", "containerPort": 9}]}
    return pod | {"spec": {"containers": [sidecar, {"ports": ports}]}}


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        found = Cluster(stack)
        await found.start()
        found.api.put(SERVICES, make_service("shop", "chat"))
        found.api.put(PODS, make_pod("shop", "chat", "a"))
        yield found


@asynccontextmanager
async def following(
    cluster: Cluster, token: str = TOKEN, is_leader: Callable[[], bool] = lambda: True
) -> AsyncIterator[Gateways]:
    gateways = Gateways(NAMESPACE, token, is_leader)
    async with (
        aiohttp.ClientSession() as session,
        running(gateways.run(Connection(session, cluster.access))),
    ):
        yield gateways


def load_of_a(gateways: Gateways) -> PodLoad | None:
    """The load, where all gateways tell."""
    load = gateways.read(["a"])["a"]
    return None if load.silent_since is not None else load


async def test_the_leader_knows_what_is_in_flight_and_who_has_seen_a_mark(cluster: Cluster) -> None:
    first, second = await cluster.add_gateway("g1"), await cluster.add_gateway("g2")
    async with following(cluster) as gateways:
        await wait_until_async("both tell", lambda: load_of_a(gateways) == PodLoad(0, False))
        route = first.catalogue.find_model("shop/chat")
        assert route
        replica = first.catalogue.ready_replicas(route)[0]
        with counted(first.balancer, replica), counted(second.balancer, replica):
            await wait_until_async("the requests", lambda: load_of_a(gateways) == PodLoad(2, False))
            marked = make_pod("shop", "chat", "a")
            marked["metadata"]["annotations"] = {ANNOTATION_LEAVING: "2026-01-01T00:00:00Z"}
            cluster.api.put(PODS, marked)
            await wait_until_async("the mark", lambda: load_of_a(gateways) == PodLoad(2, True))
        await wait_until_async("their end", lambda: load_of_a(gateways) == PodLoad(0, True))


async def test_more_than_a_hundred_gateways_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the HTTP client's own limit of connections are heard without further ado."""

    async def tell(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b'{"known": 1, "leaving": [], "ready": {}}\n')
        await asyncio.sleep(60)
        return answer

    app = web.Application()
    app.router.add_get("/loads", tell)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/loads"
    gateways = Gateways(NAMESPACE, TOKEN, lambda: True)
    monkeypatch.setattr(gateways._sink, "list_urls", lambda _: {f"g{number}": url for number in range(105)})
    async with running(gateways._keep_streams()):
        await wait_until_async("all tell", lambda: (gateways.num_expected, gateways.num_silent) == (105, 0))
    await runner.cleanup()


async def test_gateways_come_and_go(cluster: Cluster) -> None:
    await cluster.add_gateway("g1")
    async with following(cluster) as gateways:
        await wait_until_async("it tells", lambda: load_of_a(gateways))
        cluster.api.put(GATEWAYS, make_gateway_pod("dead", 8, 9))
        await wait_until_async("one that does not tell", lambda: load_of_a(gateways) is None)
        cluster.api.remove(GATEWAYS, make_gateway_pod("dead", 8, 9))
        await wait_until_async("it is gone", lambda: load_of_a(gateways))


async def test_nobody_but_the_leader_is_told(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.add_gateway("g1")
    async with following(cluster, "a stranger's") as gateways:
        await wait_until_async("the refusal", lambda: "it answers 401" in caplog.text)
        assert load_of_a(gateways) is None


async def test_the_next_leader_is_told_and_the_former_is_not(cluster: Cluster) -> None:
    await cluster.add_gateway("g1")
    leads = True
    async with following(cluster, is_leader=lambda: leads) as former:
        await wait_until_async("it is told", lambda: load_of_a(former))
        cluster.hash = sha256(b"the next one's").hexdigest()
        leads = False
        async with following(cluster, "the next one's") as latter:
            await wait_until_async("it is told", lambda: load_of_a(latter))
            assert load_of_a(former) is None


@asynccontextmanager
async def another_gateway(cluster: Cluster, *lines: bytes) -> AsyncIterator[list[float]]:
    """A gateway that tells these lines and falls silent; yields when each stream to it began."""
    began: list[float] = []

    async def tell(request: web.Request) -> web.StreamResponse:
        began.append(asyncio.get_running_loop().time())
        answer = web.StreamResponse()
        await answer.prepare(request)
        for line in lines:
            await answer.write(line + b"\n")
        await asyncio.sleep(60)
        return answer

    app = web.Application()
    app.router.add_get("/loads", tell)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster.api.put(GATEWAYS, make_gateway_pod("another", 9, runner.addresses[0][1]))
    yield began
    await runner.cleanup()


async def test_a_gateway_that_falls_silent_is_not_believed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.3)
    async with (
        another_gateway(cluster, b'{"in_flight": {}, "leaving": []}'),
        following(cluster) as gateways,
    ):
        await wait_until_async("it is believed", lambda: load_of_a(gateways))
        await wait_until_async("no longer", lambda: load_of_a(gateways) is None)
        assert gateways.num_silent == 1


@pytest.mark.parametrize(
    "line", [b"no JSON", b'{"open": {"x": 1}}', b'{"open": {"x/y": 1e999}}', b"[" * 99999]
)
async def test_whatever_a_gateway_tells_it_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.3)
    async with another_gateway(cluster, line) as began, following(cluster):
        await wait_until_async("another stream", lambda: len(began) > 1)


async def test_a_request_at_a_gateway_is_told_at_once(cluster: Cluster) -> None:
    gateway = await cluster.add_gateway("g1")
    sleeper = make_service("shop", "chat")
    sleeper["spec"]["scaling"] = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 1}
    cluster.api.put(SERVICES, sleeper)
    cluster.api.remove(PODS, make_pod("shop", "chat", "a"))
    asked: list[ServiceKey] = []
    followed = Gateways(NAMESPACE, TOKEN, lambda: True, asked.append)
    async with (
        aiohttp.ClientSession() as session,
        running(followed.run(Connection(session, cluster.access))),
    ):
        await wait_until_async("it tells", lambda: followed.num_expected and not followed.num_silent)
        await wait_until_async("the sleeper", lambda: gateway.catalogue.keys)
        url = f"http://127.0.0.1:{cluster.ports['g1']}/v1/completions"
        async with running(session.post(url, json={"model": "chat"})):
            await wait_until_async("a held request", lambda: gateway.holder.num_held == 1)
            await wait_until_async("the word of it", lambda: asked)
            assert asked[0] == ServiceKey("shop", "chat")
            assert followed.read_demand(asked[0]).num_open == 1
            cluster.api.put(PODS, make_pod("shop", "chat", "a", address="127.0.0.1"))
            await wait_until_async("its replica", lambda: gateway.balancer.is_ejected("a", time.monotonic()))
