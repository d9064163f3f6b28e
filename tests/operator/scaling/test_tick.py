"""The tick against a real HTTP answer in Prometheus's shape: what reaches the planner, and when."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.autoscale.observation import Latency, Signals
from millrace_operator.autoscale.policy import Objective
from millrace_operator.cluster.kinds import INFERENCE_SERVICE, ServiceKey
from millrace_operator.ingest.cache import Cache
from millrace_operator.resources.types import Spec
from millrace_operator.scaling.advisor import read_policy, render_advice
from millrace_operator.scaling.settings import ScalingSettings
from millrace_operator.scaling.tick import ScalingLoop
from tests.operator.world import KEY, make_pod, make_service, ready_status

OBJECTIVE = {"metric": "TimeToFirstToken", "percentile": 95, "target": "500ms"}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def prometheus() -> AsyncIterator[str]:
    """Answers that chat-1 has three requests running and one waiting, at this moment."""

    async def answer(request: web.Request) -> web.Response:
        at = float((await request.post())["time"])  # type: ignore[arg-type]
        values = {"age": at, "running": 3, "waiting": 1, "recent_arrivals": 2}
        labels = {"namespace": KEY.namespace, "service": KEY.name, "pod": "chat-1"}
        result = [
            {"metric": {**labels, "signal": name}, "value": [at, str(value)]}
            for name, value in values.items()
        ]
        return web.json_response({"status": "success", "data": {"result": result}})

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


def scaling_loop(cache: Cache, url: str, changes: list[Any]) -> ScalingLoop:
    return ScalingLoop(cache, ScalingSettings(url), changes.append, lambda: True)


def filled_cache(**spec: Any) -> Cache:
    cache = Cache()
    cache.put({**make_service(**spec), "status": {"scaling": {"desiredReplicas": 3}}})
    cache.put(make_pod(**ready_status()))
    return cache


async def test_missing_signals_hold_the_count_of_status(session: aiohttp.ClientSession) -> None:
    changes: list[Any] = []
    cache = filled_cache(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 5})
    loop = scaling_loop(cache, "http://127.0.0.1:9", changes)
    await loop.tick(session)
    advice = loop.advice(KEY)
    assert advice is not None
    assert (advice.desired, advice.is_held, changes) == (3, True, [KEY])
    await loop.tick(session)
    assert changes == [KEY]


async def test_a_service_in_mode_external_is_not_decided_for(session: aiohttp.ClientSession) -> None:
    loop = scaling_loop(filled_cache(scaling={"mode": "External"}, replicas=2), "http://127.0.0.1:9", [])
    await loop.tick(session)
    assert loop.advice(KEY) is None


async def test_a_spec_that_nobody_can_read_is_left_alone(session: aiohttp.ClientSession) -> None:
    loop = scaling_loop(filled_cache(scaling={"minReplicas": "many"}), "http://127.0.0.1:9", [])
    await loop.tick(session)
    assert loop.considered == {}


async def test_what_is_in_flight_reaches_the_planner_by_pod_and_readiness_is_the_api_servers(
    session: aiohttp.ClientSession, prometheus: str
) -> None:
    loop = scaling_loop(filled_cache(scaling={"mode": "Automatic"}), prometheus, [])
    await loop.tick(session)
    signals, advice = loop.considered[KEY].signals, loop.advice(KEY)
    assert (signals.replicas, signals.ready_replicas, signals.reporting_replicas) == (1, 1, 1)
    assert advice is not None
    assert advice.in_flight == {"chat-1": 4.0}


@pytest.mark.usefixtures("dead_proxies")
async def test_no_proxy_is_asked_for_prometheus(prometheus: str) -> None:
    loop = scaling_loop(filled_cache(scaling={"mode": "Automatic"}), prometheus, [])
    ticking = asyncio.create_task(loop.run())
    async with asyncio.timeout(5):
        while (advice := loop.advice(KEY)) is None:  # noqa: ASYNC110  what is awaited has no event
            await asyncio.sleep(0.005)
    ticking.cancel()
    assert advice.in_flight == {"chat-1": 4.0}


async def test_one_question_is_asked_for_all_services_and_none_for_none(
    session: aiohttp.ClientSession, prometheus: str
) -> None:
    cache = filled_cache(scaling={"mode": "Automatic"})
    other = make_service(scaling={"mode": "Automatic", "objectives": [OBJECTIVE]})
    cache.put({**other, "metadata": {**other["metadata"], "name": "other"}})
    loop = scaling_loop(cache, prometheus, [])
    await loop.tick(session)
    unknown = loop.considered[ServiceKey(KEY.namespace, "other")].signals.rejected
    assert unknown == {"every signal": "Prometheus has no series of this service"}
    await scaling_loop(Cache(), "not even a URL", []).tick(session)


async def test_a_service_that_is_gone_is_forgotten(session: aiohttp.ClientSession) -> None:
    cache = filled_cache(scaling={"mode": "Automatic"})
    loop = scaling_loop(cache, "http://127.0.0.1:9", [])
    await loop.tick(session)
    cache.drop(INFERENCE_SERVICE, *KEY)
    await loop.tick(session)
    assert loop.considered == {}


def test_a_policy_is_read_from_the_spec() -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 4, "objectives": [OBJECTIVE]}
    spec = Spec.model_validate(
        {"model": {"uri": "file:///m"}, "scaling": scaling, "engine": {"maxSequences": 8}}
    )
    policy = read_policy(spec, ScalingSettings("http://unused", 2.0, 60.0))
    assert (policy.min_replicas, policy.max_replicas, policy.max_sequences) == (2, 4, 8)
    assert (policy.tick_seconds, policy.scale_down_window_seconds) == (2.0, 60.0)
    assert policy.objectives == (Objective("TimeToFirstToken", 95, 0.5),)


class Held:
    desired, reason, message, binding, is_held = 2, "SignalsMissing", "text", "current", True


@pytest.mark.parametrize(
    ("seconds", "num_samples", "expected"), [(0.4, 100, True), (0.6, 100, False), (0.6, 5, None)]
)
def test_objectives_are_known_only_from_enough_requests(
    *, seconds: float, num_samples: float, expected: bool | None
) -> None:
    latency = Latency(Objective("TimeToFirstToken", 95, 0.5), seconds, num_samples)
    advice = render_advice(Held, Signals(1, 1, latencies=(latency,)))  # type: ignore[arg-type]
    assert advice.are_objectives_met is expected
    assert ("P95 TimeToFirstToken" in advice.objectives_message) == (expected is not None)
