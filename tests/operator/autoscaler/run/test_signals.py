"""`fetch_reading` against a real HTTP server that answers as Prometheus does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.run.prometheus import Prometheus, fetch_reading
from millrace_operator.autoscaler.run.settings import Access, PrometheusSettings
from millrace_operator.autoscaler.signals.answers import PodKey, Reading
from millrace_operator.autoscaler.signals.queries import Scope, build_questions
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS
from millrace_operator.kube.kinds import ServiceKey
from testing.addresses import needs_ipv6

NOW = 1_700_000_000.0
TTFT = Objective("TimeToFirstToken", 95, 1.0)
CHAT = ServiceKey("team", "chat")
OWNERS = {PodKey("team", "chat-1"): CHAT}
SERIES = [{"metric": {"namespace": "team", "pod": "chat-1", "signal": "running"}, "value": [NOW, "2"]}]
GOOD = {"status": "success", "data": {"result": SERIES}}
STATE, LOAD, LATENCIES = "timestamp(", "prompt_tokens", "histogram_quantile("


class FakePrometheus:
    """Gives every query the same answer, except those for which a test has another."""

    def __init__(self, body: Any = GOOD) -> None:
        self._body = body
        self.asked: list[str] = []
        self.headers: list[Any] = []
        self.others: dict[str, Callable[[], web.Response]] = {}
        self.delays: dict[str, float] = {}

    async def answer(self, request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        self.asked.append(query)
        self.headers.append(request.headers)
        for part, seconds in self.delays.items():
            await asyncio.sleep(seconds if part in query else 0.0)
        found = (make() for part, make in self.others.items() if part in query)
        return next(found, None) or web.json_response(self._body)

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1") -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/api/v1/query", self.answer)
        async with TestServer(app, host=host) as server:
            yield str(server.make_url(""))


async def ask(url: str, *objectives: Objective, timeout: float = 2.0, **settings: Any) -> Reading:
    questions = build_questions(objectives, DEFAULT_WINDOWS, Scope())
    async with aiohttp.ClientSession() as session:
        prometheus = Prometheus(session, Access(PrometheusSettings(url, **settings)), timeout)
        return await fetch_reading(prometheus, questions, OWNERS, NOW, DEFAULT_WINDOWS)


async def fail(fake: FakePrometheus) -> str:
    async with fake.serving() as url:
        return (await ask(url)).failure or ""


async def test_three_questions_ask_for_everything() -> None:
    fake = FakePrometheus()
    async with fake.serving() as url:
        reading = await ask(url, TTFT, Objective("TimeToFirstToken", 99, 1.0))
    assert {sample.value for sample in reading.series[CHAT]["running"]} == {2.0}
    assert (len(fake.asked), reading.failure, reading.unknown) == (3, None, {})
    (latencies,) = (query for query in fake.asked if LATENCIES in query)
    assert latencies.count("histogram_quantile(0.95") == latencies.count("histogram_quantile(0.99") == 1


@needs_ipv6
async def test_prometheus_may_have_an_ipv6_address() -> None:
    async with FakePrometheus().serving("::1") as url:
        assert "[::1]" in url
        reading = await ask(url)
    assert reading.failure is None
    assert len(reading.series) == 1


async def test_a_silent_prometheus_is_a_reason_that_says_what_to_set() -> None:
    reading = await ask("http://127.0.0.1:9")
    assert reading.series == {}
    assert "did not answer" in (reading.failure or "")
    assert "--prometheus-url" in (reading.failure or "")


async def test_a_slow_prometheus_is_given_up() -> None:
    fake = FakePrometheus()
    fake.delays = {"": 0.6}
    async with fake.serving() as url:
        reading = await ask(url, timeout=0.2)
    assert "within 0.2 s" in (reading.failure or "")


def refuse() -> web.Response:
    body = {"status": "error", "error": "query processing would load too many samples into memory"}
    return web.json_response(body, status=422)


@pytest.mark.parametrize(("part", "lost"), [(STATE, "waiting"), (LOAD, "received"), (LATENCIES, TTFT.name)])
async def test_a_question_that_fails_leaves_the_signals_of_the_others(part: str, lost: str) -> None:
    fake = FakePrometheus()
    fake.others = {part: refuse}
    async with fake.serving() as url:
        reading = await ask(url, TTFT)
    assert reading.failure is None
    assert "too many samples" in reading.unknown[lost]
    assert not reading.unknown.keys() & ({"waiting", "received", TTFT.name} - {lost})
    assert CHAT in reading.series


async def test_a_part_of_the_truth_is_none() -> None:
    """VictoriaMetrics and Thanos may answer from a part of their stores, and add a warning then."""
    assert "a part of its stores" in await fail(FakePrometheus({**GOOD, "isPartial": True}))
    lost = ["PromQL warning: a rate of a gauge", "receive series from Addr: store-1: Unavailable"]
    assert "receive series" in await fail(FakePrometheus({**GOOD, "warnings": lost}))


async def test_a_warning_about_the_query_is_no_partial_answer() -> None:
    warned = FakePrometheus({**GOOD, "warnings": ["PromQL warning: a rate of a gauge"]})
    async with warned.serving() as url:
        reading = await ask(url)
    assert reading.failure is None


async def test_a_slow_question_leaves_the_signals_of_the_others() -> None:
    fake = FakePrometheus()
    fake.delays = {LATENCIES: 0.6}
    async with fake.serving() as url:
        reading = await ask(url, TTFT, timeout=0.3)
    assert "within 0.3 s" in reading.unknown[TTFT.name]
    assert CHAT in reading.series


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"status": "error", "error": "parse error"}, "parse error"),
        ([], "not a JSON object"),
        ({"status": "success", "data": {}}, "unknown shape"),
        ({"status": "success", "data": []}, "unknown shape"),
        ({"status": "success", "data": {"result": None}}, "unknown shape"),
        ({"status": "success", "data": {"result": [{"metric": "up", "value": [1, "2"]}]}}, "unknown shape"),
        ({"status": "success", "data": {"result": ["up"]}}, "unknown shape"),
    ],
)
async def test_an_answer_that_is_none_is_refused_with_the_reason(body: Any, message: str) -> None:
    assert message in await fail(FakePrometheus(body))


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "prometheus.tokenSecret"), (403, "give their owner the right to query"), (302, "is no Prometheus"),
     (502, "status 502 and no JSON")],
)  # fmt: skip
async def test_refused_credentials_are_a_reason_that_says_what_to_set(status: int, message: str) -> None:
    fake = FakePrometheus()
    fake.others = {"": lambda: web.Response(status=status, text="<html>", headers={"Location": "/login"})}
    assert message in await fail(fake)


async def test_credentials_are_not_carried_to_where_an_answer_points() -> None:
    fake = FakePrometheus()
    fake.others = {"": lambda: web.Response(status=307, headers={"Location": "/api/v1/query"})}
    assert "status 307 and no JSON" in await fail(fake)
    assert len(fake.asked) == 2


async def test_a_token_is_read_again_when_it_is_renewed(tmp_path: Path) -> None:
    fake, file = FakePrometheus(), tmp_path / "token"
    async with fake.serving() as url:
        for token in ("first", "second"):
            file.write_text(f"{token}\n")
            await ask(url, token_file=file, tenant="team-a")
    assert [h["Authorization"] for h in fake.headers] == ["Bearer first"] * 2 + ["Bearer second"] * 2
    assert {h["X-Scope-OrgID"] for h in fake.headers} == {"team-a"}


async def test_credentials_that_cannot_be_read_are_a_reason_without_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with FakePrometheus().serving() as url:
        absent = (await ask(url, token_file=file)).failure
        file.write_text("secret\x00line")
        broken = (await ask(url, token_file=file)).failure
    assert absent == f"no credentials for Prometheus in {file}: No such file or directory"
    assert broken == f"no credentials for Prometheus in {file}: write one line of printable characters"
