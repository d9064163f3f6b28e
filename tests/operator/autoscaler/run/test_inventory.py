"""The inventory of replicas, against a real HTTP answer in Prometheus' shape."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.autoscaler.run.inventory import Inventory
from millrace_operator.autoscaler.run.settings import PrometheusSettings
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import INFERENCE_SERVICE, POD, ServiceKey
from testing.world import KEY, make_pod, make_service, ready_status
from tests.operator.autoscaler.replicas import H100, make_series


class Source:
    """A Prometheus that knows these pods."""

    def __init__(self) -> None:
        self.pods: list[str] = []
        self.is_broken = False
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(str((await request.post())["query"]))
        if self.is_broken:
            return web.json_response({"status": "error", "error": "broken"}, status=503)
        found = []
        for pod in self.pods:
            for signal, samples in make_series(pod).items():
                labels = {**samples[0].labels, "namespace": KEY.namespace, "signal": signal}
                found.append({"metric": labels, "value": [0, str(samples[0].value)]})
        return web.json_response({"status": "success", "data": {"result": found}})


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    found, app = Source(), web.Application()
    app.router.add_post("/api/v1/query", found.answer)
    async with TestServer(app) as server:
        found.url = str(server.make_url(""))
        yield found


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def cache() -> Cache:
    """A service in mode External, which the autoscaler does not look at, with two replicas."""
    cache = Cache()
    cache.put(make_service(scaling={"mode": "External"}, replicas=2))
    for name in ("chat-1", "chat-2"):
        cache.put(make_pod(name, **ready_status()))
    return cache


def make_inventory(cache: Cache, url: str, changed: list[Any]) -> Inventory:
    return Inventory(cache, PrometheusSettings(url), changed.append, lambda: True)


async def test_the_planner_is_woken_for_what_is_new_and_not_again(
    source: Source, session: aiohttp.ClientSession, cache: Cache
) -> None:
    changed: list[ServiceKey] = []
    inventory = make_inventory(cache, source.url, changed)
    await inventory.refresh(session)
    assert (inventory.read(KEY), changed) == ({}, [])
    source.pods = ["chat-1"]
    await inventory.refresh(session)
    await inventory.refresh(session)
    assert (inventory.read(KEY), changed) == ({"chat-1": H100}, [KEY])
    source.pods = ["chat-1", "chat-2", "foreign"]
    await inventory.refresh(session)
    assert (inventory.read(KEY), changed) == ({"chat-1": H100, "chat-2": H100}, [KEY, KEY])
    assert len(source.asked) == 4


@pytest.mark.parametrize("is_broken", [True, False])
async def test_what_is_known_of_a_pod_outlives_its_signals_and_not_the_pod(
    source: Source, session: aiohttp.ClientSession, cache: Cache, *, is_broken: bool
) -> None:
    inventory = make_inventory(cache, source.url, [])
    source.pods = ["chat-1", "chat-2"]
    await inventory.refresh(session)
    source.pods, source.is_broken = [], is_broken
    await inventory.refresh(session)
    assert set(inventory.read(KEY)) == {"chat-1", "chat-2"}
    cache.drop(POD, KEY.namespace, "chat-2")
    await inventory.refresh(session)
    assert set(inventory.read(KEY)) == {"chat-1"}
    cache.drop(POD, KEY.namespace, "chat-1")
    await inventory.refresh(session)
    cache.drop(INFERENCE_SERVICE, *KEY)
    await inventory.refresh(session)
    assert inventory.read(KEY) == {}


async def test_without_prometheus_nothing_is_known(session: aiohttp.ClientSession, cache: Cache) -> None:
    changed: list[ServiceKey] = []
    inventory = make_inventory(cache, "http://127.0.0.1:9", changed)
    await inventory.refresh(session)
    assert (inventory.read(KEY), changed) == ({}, [])


async def test_nothing_is_asked_where_no_pod_exists(source: Source, session: aiohttp.ClientSession) -> None:
    cache = Cache()
    cache.put(make_service())
    await make_inventory(cache, source.url, []).refresh(session)
    assert source.asked == []


async def test_an_operator_that_leads_asks_at_once_and_one_that_does_not_forgets(
    source: Source, cache: Cache
) -> None:
    changed: list[ServiceKey] = []
    leads = True
    inventory = Inventory(cache, PrometheusSettings(source.url), changed.append, lambda: leads)
    source.pods = ["chat-1"]
    await run_until(inventory, lambda: bool(inventory.read(KEY)))
    leads = False
    await run_until(inventory, lambda: not inventory.read(KEY))
    assert (changed, len(source.asked)) == ([KEY], 1)


async def run_until(inventory: Inventory, is_met: Callable[[], bool]) -> None:
    running = asyncio.create_task(inventory.run())
    async with asyncio.timeout(5):
        while not is_met():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
