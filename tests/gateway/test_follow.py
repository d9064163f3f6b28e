"""The gateway follows services and replicas in a cluster."""

import asyncio
from contextlib import suppress

from aiohttp import web

from e2e.polling import wait_until_async
from millrace_gateway.objects import ServiceKey
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
    await check_changes(api, gateway)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await runner.cleanup()


async def check_changes(api: FakeApiServer, gateway: Gateway) -> None:
    catalogue, two = gateway.catalogue, ServiceKey("a", "two")
    await wait_until_async(
        "both streams", lambda: api.num_streams(SERVICES.path) and api.num_streams(REPLICAS.path)
    )
    assert gateway.lifecycle.is_synced
    assert set(catalogue.keys) == {ServiceKey("a", "one")}
    api.put(SERVICES.path, make_service("a", "two"))
    api.put(REPLICAS.path, make_pod("a", "two", "p1"))
    route = await wait_until_async("the second service", lambda: catalogue.find(two))
    assert route
    await wait_until_async("its replica", lambda: catalogue.ready_replicas(route))
    api.remove(REPLICAS.path, make_pod("a", "two", "p1"))
    api.remove(SERVICES.path, make_service("a", "one"))
    await wait_until_async("the first service is gone", lambda: set(catalogue.keys) == {two})
    await wait_until_async("the replica is gone", lambda: not catalogue.ready_replicas(route))
    selectors = {request["path"]: request.get("labelSelector") for request in api.requests}
    assert selectors == {SERVICES.path: None, REPLICAS.path: "millrace.dev/component=replica"}
    assert set(api.user_agents) == {"millrace-gateway"}
