"""The gateway follows services and replicas in a cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from aiohttp import web

from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.server import Gateway
from millrace_gateway.settings import Settings
from millrace_kubernetes.access import ClusterAccess
from testing.api_server import FakeApiServer
from testing.polling import wait_until_async
from tests.gateway.conftest import PODS, SERVICES, make_pod, make_service


@asynccontextmanager
async def serving(api: FakeApiServer, port: int = 0) -> AsyncIterator[int]:
    """Serve the API, and yield its port."""
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def following_at(port: int, *namespaces: str) -> AsyncIterator[Gateway]:
    gateway = Gateway(Settings("127.0.0.1", 0, namespaces=namespaces))
    assert not gateway.lifecycle.is_synced
    task = asyncio.create_task(gateway.follow(ClusterAccess(f"http://127.0.0.1:{port}", None)))
    try:
        yield gateway
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def following(api: FakeApiServer, *namespaces: str) -> AsyncIterator[Gateway]:
    async with serving(api) as port, following_at(port, *namespaces) as gateway:
        yield gateway


async def test_services_and_replicas_are_listed_then_followed() -> None:
    api = FakeApiServer()
    api.put(SERVICES, make_service("a", "one"))
    async with following(api) as gateway:
        await check_changes(api, gateway)


def in_namespace(path: str, namespace: str) -> str:
    root, _, plural = path.rpartition("/")
    return f"{root}/namespaces/{namespace}/{plural}"


async def test_of_some_namespaces_nothing_else_is_asked_and_each_is_kept_apart() -> None:
    api = FakeApiServer()
    for name in ("a", "b"):
        api.put(in_namespace(SERVICES, name), make_service(name, "chat"))
        api.put(in_namespace(PODS, name), make_pod(name, "chat", f"{name}-1"))
    paths = {in_namespace(path, name) for path in (SERVICES, PODS) for name in ("a", "b")}
    async with following(api, "a", "b") as gateway:
        await wait_until_async("all streams", lambda: all(map(api.num_streams, paths)))
        assert gateway.lifecycle.is_synced
        assert gateway.catalogue.keys == {ServiceKey("a", "chat"), ServiceKey("b", "chat")}
        api.objects[in_namespace(SERVICES, "a")].clear()
        api.objects[in_namespace(PODS, "a")].clear()
        for path in (SERVICES, PODS):
            api.expire(in_namespace(path, "a"))  # each is listed anew
        await wait_until_async("a's is gone", lambda: gateway.catalogue.keys == {ServiceKey("b", "chat")})
        route = gateway.catalogue.find(ServiceKey("b", "chat"))
        assert route
        assert [replica.pod for replica in gateway.catalogue.ready_replicas(route)] == ["b-1"]
        gateway.catalogue.check_integrity()
    assert {request["path"] for request in api.requests} == paths


async def test_while_the_api_server_is_gone_what_is_known_counts(caplog: pytest.LogCaptureFixture) -> None:
    api, one, two = FakeApiServer(), ServiceKey("a", "one"), ServiceKey("a", "two")
    api.put(SERVICES, make_service("a", "one"))
    api.put(PODS, make_pod("a", "one", "p1"))
    async with AsyncExitStack() as stack:
        async with serving(api) as port:
            gateway = await stack.enter_async_context(following_at(port))
            await wait_until_async("all streams", lambda: all(map(api.num_streams, (SERVICES, PODS))))
        caplog.clear()
        await wait_until_async("refused connections", lambda: len(caplog.records) > 3)
        route = gateway.catalogue.find(one)
        assert route
        assert [replica.pod for replica in gateway.catalogue.ready_replicas(route)] == ["p1"]
        assert gateway.lifecycle.is_synced
        api.put(SERVICES, make_service("a", "two"))
        api.remove(PODS, make_pod("a", "one", "p1"))
        async with serving(api, port):
            await wait_until_async("all streams", lambda: all(map(api.num_streams, (SERVICES, PODS))))
            for path in (SERVICES, PODS):
                api.expire(path)  # its history does not reach back that far
            await wait_until_async("the second service", lambda: gateway.catalogue.find(two))
            await wait_until_async("the pod's end", lambda: not gateway.catalogue.ready_replicas(route))
            gateway.catalogue.check_integrity()


async def check_changes(api: FakeApiServer, gateway: Gateway) -> None:
    catalogue, two = gateway.catalogue, ServiceKey("a", "two")
    await wait_until_async("both streams", lambda: api.num_streams(SERVICES) and api.num_streams(PODS))
    assert gateway.lifecycle.is_synced
    assert set(catalogue.keys) == {ServiceKey("a", "one")}
    api.put(SERVICES, make_service("a", "two"))
    api.put(PODS, make_pod("a", "two", "p1"))
    route = await wait_until_async("the second service", lambda: catalogue.find(two))
    assert route
    await wait_until_async("its replica", lambda: catalogue.ready_replicas(route))
    api.remove(PODS, make_pod("a", "two", "p1"))
    api.remove(SERVICES, make_service("a", "one"))
    await wait_until_async("the first service is gone", lambda: set(catalogue.keys) == {two})
    await wait_until_async("the replica is gone", lambda: not catalogue.ready_replicas(route))
    selectors = {request["path"]: request.get("labelSelector") for request in api.requests}
    assert selectors == {SERVICES: None, PODS: "millrace.dev/component=replica"}
    assert set(api.user_agents) == {"millrace-gateway"}
