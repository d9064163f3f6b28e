"""A failed query of one group of services harms no other group, and no failure ends the loop."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.run import tick
from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings
from millrace_operator.autoscaler.run.tick import ScalingLoop
from millrace_operator.autoscaler.signals.scrapes import Cadence
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import ServiceKey
from millrace_runtime.contract import LABEL_SERVICE
from testing.world import make_pod, make_service, ready_status

QUICK, SLOW = ServiceKey("quick", "chat"), ServiceKey("slow", "chat")
BEGAN = 1_700_000_000.0
OBJECTIVE = {"metric": "TimeToFirstToken", "percentile": 95, "target": "500ms"}


class Stage:
    """A Prometheus that scrapes one service every 5 s and another every 60 s, and the loop that asks it."""

    def __init__(self, url: str, asked: list[str]) -> None:
        self.cache, self.changes, self.asked = Cache(), [], asked  # type: ignore[var-annotated]
        self.now = BEGAN
        for key in (QUICK, SLOW):
            self._add_service(key)
        settings = ScalingSettings(PrometheusSettings(url), tick_seconds=0.05)
        self.loop = ScalingLoop(self.cache, settings, self.changes.append, lambda: True, lambda: self.now)
        self.loop._memories[SLOW] = Memory(cadence=Cadence(last_seconds=60.0))

    def _add_service(self, key: ServiceKey) -> None:
        objectives = [OBJECTIVE] if key is QUICK else []
        service = make_service(scaling={"mode": "Automatic", "objectives": objectives})
        pod = make_pod("chat-1", **ready_status())
        for obj in (service, pod):
            obj["metadata"]["namespace"] = key.namespace
        pod["metadata"]["labels"][LABEL_SERVICE] = key.name
        self.cache.put(service)
        self.cache.put(pod)

    async def tick(self) -> None:
        async with aiohttp.ClientSession() as session:
            await self.loop.tick(session)

    def waiting(self, key: ServiceKey) -> float | None:
        return self.loop.considered[key].signals.waiting

    def reason(self, key: ServiceKey) -> str:
        return self.loop.considered[key].signals.rejected["every signal"]


class Answers:
    """Prometheus' answers by the namespace of the query; all of them are good at first."""

    def __init__(self) -> None:
        self.bodies: dict[str, Any] = {}
        self.delays: dict[str, float] = {}
        self.asked: list[str] = []
        self.unscraped: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        query, at = str(form["query"]), float(form["time"])  # type: ignore[arg-type]
        self.asked.append(query)
        found = re.search(r'namespace=~"([^"]+)"', query)
        names = found[1].split("|") if found else []
        await asyncio.sleep(max(self.delays.get(name, 0.0) for name in names))
        result = [series for name in names for series in self._list_series(name, at)]
        bodies = [self.bodies[name] for name in names if name in self.bodies]
        return web.json_response(bodies[0] if bodies else {"status": "success", "data": {"result": result}})

    def _list_series(self, namespace: str, at: float) -> list[Any]:
        values = {"age": at - 1, "waiting": 4.0, "running": 1.0, "recent_arrivals": 2.0}
        if namespace in self.unscraped:
            del values["age"]
        return [
            {"metric": {"namespace": namespace, "pod": "chat-1", "signal": name}, "value": [at, str(value)]}
            for name, value in values.items()
        ]


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def stage(answers: Answers) -> AsyncIterator[Stage]:
    app = web.Application()
    app.router.add_post("/api/v1/query", answers.answer)
    async with TestServer(app) as server:
        yield Stage(str(server.make_url("")), answers.asked)


async def test_each_group_asks_about_its_own_namespaces_and_only_for_latencies_that_it_wants(
    stage: Stage,
) -> None:
    await stage.tick()
    by_group = {
        key: [query for query in stage.asked if f'"{key.namespace}"' in query] for key in (QUICK, SLOW)
    }
    assert [len(queries) for queries in by_group.values()] == [3, 2]
    assert not set(by_group[QUICK]) & set(by_group[SLOW])
    assert not any("histogram_quantile" in query for query in by_group[SLOW])
    assert (stage.waiting(QUICK), stage.waiting(SLOW)) == (4.0, 4.0)


async def test_a_slow_answer_to_one_group_does_not_keep_the_other_waiting(
    stage: Stage, answers: Answers
) -> None:
    answers.delays["slow"] = 0.5
    ticking = asyncio.create_task(stage.tick())
    async with asyncio.timeout(5):
        while QUICK not in stage.loop.considered:  # noqa: ASYNC110  what is awaited has no event
            await asyncio.sleep(0.005)
    assert SLOW not in stage.loop.considered
    await ticking
    assert (stage.waiting(QUICK), stage.waiting(SLOW)) == (4.0, 4.0)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"status": "success", "data": {"result": [{"metric": ["up"], "value": [1, "2"]}]}},
        {"status": "error", "error": "too many samples"},
    ],
)
async def test_an_answer_that_nobody_can_read_leaves_one_groups_signals_unknown(
    stage: Stage, answers: Answers, body: Any
) -> None:
    answers.bodies["slow"] = body
    await stage.tick()
    assert stage.waiting(QUICK) == 4.0
    assert stage.loop.considered[SLOW].decision.is_held
    assert "Prometheus" in stage.reason(SLOW)


async def test_whatever_goes_wrong_with_an_answer_is_a_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours that no answer is known to reveal."""

    async def fetch(*_: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(tick, "fetch_reading", fetch)
    await stage.tick()
    assert "no such thing" in stage.reason(QUICK)
    assert stage.loop.considered[QUICK].decision.is_held


async def test_a_tick_that_fails_is_not_the_last(stage: Stage) -> None:
    failures = []

    def fail() -> float:
        failures.append(BEGAN)
        raise RuntimeError("no clock")

    stage.loop._clock = fail
    ticking = asyncio.create_task(stage.loop.run())
    async with asyncio.timeout(5):
        while len(failures) < 4:  # noqa: ASYNC110  what is awaited has no event
            await asyncio.sleep(0.005)
        stage.loop._clock = lambda: BEGAN
        while SLOW not in stage.loop.considered:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.005)
    ticking.cancel()


async def test_one_failed_scrape_makes_no_replica_silent_and_a_restarted_operator_does_not_know_it(
    stage: Stage, answers: Answers
) -> None:
    await stage.tick()
    answers.unscraped.add("quick")
    for seconds, silent in ((13.0, set()), (15.0, {"chat-1"})):
        stage.now = BEGAN + seconds
        await stage.tick()
        assert stage.loop.considered[QUICK].signals.silent == silent
    assert "of chat-1 (none since 22:13:19 UTC)" in stage.loop.considered[QUICK].signals.rejected["age"]
    stage.loop._forget_all_but({SLOW})
    await stage.tick()
    assert "of chat-1 (none so far)" in stage.loop.considered[QUICK].signals.rejected["age"]
