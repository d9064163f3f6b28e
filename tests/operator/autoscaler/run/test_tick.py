"""The tick against a real HTTP answer in Prometheus' shape: the advice to the planner, and its time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.autoscaler.run import tick
from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings
from millrace_operator.autoscaler.run.tick import ScalingLoop
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import INFERENCE_SERVICE, ServiceKey
from testing.world import KEY, make_pod, make_service, ready_status

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


def scaling_loop(
    cache: Cache, url: str, changes: list[Any], clock: Callable[[], float] = time.time
) -> ScalingLoop:
    settings = ScalingSettings(PrometheusSettings(url))
    return ScalingLoop(cache, settings, changes.append, lambda: True, clock)


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


async def test_arrivals_are_those_that_the_gateways_stream_not_what_pods_export(
    session: aiohttp.ClientSession, prometheus: str
) -> None:
    asked: list[tuple[ServiceKey, float]] = []

    def count_arrivals(key: ServiceKey, seconds: float) -> float:
        asked.append((key, seconds))
        return 5.0

    settings = ScalingSettings(PrometheusSettings(prometheus))
    loop = ScalingLoop(filled_cache(), settings, [].append, lambda: True, arrivals=count_arrivals)
    await loop.tick(session)
    signals = loop.considered[KEY].signals
    assert (signals.arrivals_per_second, signals.recent_arrivals_per_second) == (5.0, 5.0)
    assert {key for key, _ in asked} == {KEY}


@pytest.mark.parametrize("mode", ["Automatic", "DryRun"])
async def test_each_decision_begins_with_the_count_in_status(
    session: aiohttp.ClientSession, prometheus: str, mode: str
) -> None:
    """Whoever set it: an earlier decision, another leader, a changed bound. A dry run sets none itself."""
    cache = filled_cache(scaling={"mode": mode, "minReplicas": 1, "maxReplicas": 50})
    loop, found = scaling_loop(cache, prometheus, []), []
    for desired in (3, 3, 7):
        service = make_service(scaling={"mode": mode, "minReplicas": 1, "maxReplicas": 50})
        cache.put({**service, "status": {"scaling": {"desiredReplicas": desired}}})
        await loop.tick(session)
        found.append(loop.considered[KEY].signals.fleet.current)
    assert found == [3, 3, 7]


async def test_the_planner_reads_from_which_count_a_decision_was_made(
    session: aiohttp.ClientSession,
) -> None:
    changes: list[Any] = []
    cache = filled_cache(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 5})
    loop = scaling_loop(cache, "http://127.0.0.1:9", changes)
    await loop.tick(session)
    advice = loop.advice(KEY)
    assert advice is not None
    assert advice.made_from == 3


async def test_others_have_their_turn_between_two_decisions(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "TURN_SECONDS", 0.0)
    cache = Cache()
    for number in range(20):
        service = make_service(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 5})
        service["metadata"] |= {"name": f"chat-{number}", "uid": f"uid-{number}"}
        cache.put(service)
    loop = scaling_loop(cache, "http://127.0.0.1:9", [])
    counts: list[int] = []

    async def look() -> None:
        while True:
            counts.append(len(loop.considered))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await loop.tick(session)
    looking.cancel()
    assert set(range(20)) <= set(counts)


async def test_a_decision_that_fails_takes_the_last_one_away(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    cache = filled_cache(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 5})
    loop = scaling_loop(cache, "http://127.0.0.1:9", [])
    await loop.tick(session)
    assert loop.advice(KEY) is not None
    cache.put({**(cache.service(KEY) or {}), "status": {"scaling": {"desiredReplicas": "many"}}})
    await loop.tick(session)
    assert loop.advice(KEY) is None
    assert "no decision for" in caplog.text


async def test_the_planner_is_woken_for_a_decision_made_from_another_count(
    session: aiohttp.ClientSession,
) -> None:
    """It may have put off the last one, which is the same else."""
    changes: list[Any] = []
    cache = filled_cache(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 5})
    loop, found = scaling_loop(cache, "http://127.0.0.1:9", changes), []
    for desired in (12, 9):
        cache.put({**(cache.service(KEY) or {}), "status": {"scaling": {"desiredReplicas": desired}}})
        await loop.tick(session)
        advice = loop.advice(KEY)
        assert advice is not None
        found.append((advice.desired, advice.reason))
    assert found[0] == found[1]
    assert changes == [KEY, KEY]


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
    assert (signals.fleet.ready, signals.reporting) == ({"chat-1"}, {"chat-1"})
    assert advice is not None
    assert advice.in_flight == {"chat-1": 4.0}


async def test_what_the_decision_rests_on_reaches_the_planner(
    session: aiohttp.ClientSession, prometheus: str
) -> None:
    scaling = {"mode": "Automatic", "objectives": [OBJECTIVE]}
    loop = scaling_loop(filled_cache(scaling=scaling), prometheus, [], lambda: 1000.0)
    await loop.tick(session)
    advice = loop.advice(KEY)
    assert advice is not None
    evidence = advice.evidence
    assert evidence is not None
    assert (evidence["running"], evidence["waiting"], evidence["arrivalsPerSecond"]) == (3, 1, "2")
    assert evidence["observedAt"] == evidence["oldestSampleAt"] == "1970-01-01T00:16:40Z"
    assert [objective["state"] for objective in evidence["objectives"]] == ["Unknown"]
    assert {"signal": "kv_usage", "reason": "no samples"} in evidence["rejected"]


async def test_after_a_pin_it_goes_on_from_the_count_in_status(
    session: aiohttp.ClientSession, prometheus: str
) -> None:
    """What it would have done beside the pin is not what there is."""
    moments = iter([1000.0, 1002.0, 1100.0])
    cache = filled_cache(scaling={"mode": "Automatic", "maxReplicas": 9})
    loop = scaling_loop(cache, prometheus, [], lambda: next(moments))
    found = []
    for pinned in (None, "8 until 1970-01-01T00:17:30Z", "8 until 1970-01-01T00:17:30Z"):
        service = dict(cache.service(KEY) or {})
        if pinned:
            metadata = {**service["metadata"], "annotations": {"millrace.dev/pin": pinned}}
            cache.put({**service, "metadata": metadata, "status": {"scaling": {"desiredReplicas": 8}}})
        await loop.tick(session)
        advice = loop.advice(KEY)
        assert advice is not None
        found.append(advice.desired)
    assert found == [3, 8, 8]


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
    await scaling_loop(Cache(), "http://127.0.0.1:9", []).tick(session)


async def test_a_service_that_is_gone_is_forgotten(session: aiohttp.ClientSession) -> None:
    cache = filled_cache(scaling={"mode": "Automatic"})
    loop = scaling_loop(cache, "http://127.0.0.1:9", [])
    await loop.tick(session)
    cache.drop(INFERENCE_SERVICE, *KEY)
    await loop.tick(session)
    assert loop.considered == {}
