"""The gateway follows services and replicas in a cluster."""

import asyncio
from contextlib import suppress

from aiohttp import web

from millrace_gateway.objects import Key
from millrace_gateway.server import Gateway
from millrace_gateway.settings import Settings
from millrace_gateway.sinks import REPLICAS, SERVICES
from millrace_kubernetes.access import ClusterAccess
from tests.gateway.conftest import make_pod, make_service
from tests.kubernetes.api_server import FakeApiServer


async def test_services_and_replicas_are_listed_then_followed() -> None:
    api, gateway = FakeApiServer(), Gateway(Settings("127.0.0.1", 0))
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.put(SERVICES.path, make_service("a", "one"))
    access = ClusterAccess(f"http://127.0.0.1:{runner.addresses[0][1]}", None)
    assert not gateway.lifecycle.is_synced
    task = asyncio.create_task(gateway.follow(access))
    async with asyncio.timeout(5):
        await check_changes(api, gateway)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await runner.cleanup()


async def check_changes(api: FakeApiServer, gateway: Gateway) -> None:
    catalogue, two = gateway.catalogue, Key("a", "two")
    while not (api.num_streams(SERVICES.path) and api.num_streams(REPLICAS.path)):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert gateway.lifecycle.is_synced
    assert set(catalogue.keys) == {Key("a", "one")}
    api.put(SERVICES.path, make_service("a", "two"))
    api.put(REPLICAS.path, make_pod("a", "two", "p1"))
    while not ((route := catalogue.find(two)) and catalogue.ready_replicas(route)):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    api.remove(REPLICAS.path, make_pod("a", "two", "p1"))
    api.remove(SERVICES.path, make_service("a", "one"))
    while set(catalogue.keys) != {two} or catalogue.ready_replicas(route):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    selectors = {request["path"]: request.get("labelSelector") for request in api.requests}
    assert selectors == {SERVICES.path: None, REPLICAS.path: "millrace.dev/component=replica"}
    assert set(api.user_agents) == {"millrace-gateway"}
