"""`observe_signals` against a real HTTP server that answers as Prometheus does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.signals import (
    SignalError,
    Windows,
    build_queries,
    observe_signals,
    parse_samples,
)

NOW = 1_700_000_000.0
TTFT = Objective("TimeToFirstToken", 95, 1.0)
Answer = Callable[[str], list[tuple[dict[str, str], str]]]
BY_QUERY = {text: name for name, text in build_queries("team", "chat", Windows(), (TTFT,)).items()}


def answer_all(name: str) -> list[tuple[dict[str, str], str]]:
    values = {"age": str(NOW - 3), "running": "2", "waiting": "1", "kv_usage": "0.5", "arrivals": "4.5"}
    value = values.get(name, "0.25")
    return [({"pod": "a"}, value), ({"pod": "b"}, value), ({"pod": "gone"}, value)]


@asynccontextmanager
async def prometheus(answer: Answer, delay_seconds: float = 0.0) -> AsyncIterator[str]:
    async def query(request: web.Request) -> web.Response:
        await asyncio.sleep(delay_seconds)
        series = answer(BY_QUERY[request.query["query"]])
        result = [{"metric": labels, "value": [NOW, value]} for labels, value in series]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    app = web.Application()
    app.router.add_get("/api/v1/query", query)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def observe(url: str, windows: Windows = Windows()) -> Signals:  # noqa: B008
    async with aiohttp.ClientSession() as session:
        return await observe_signals(
            session, url, "team", "chat", frozenset({"a", "b"}), NOW, objectives=(TTFT,), windows=windows
        )


async def test_reads_every_signal_of_the_pods_that_exist() -> None:
    async with prometheus(answer_all) as url:
        signals = await observe(url)
    assert (signals.replicas, signals.reporting_replicas) == (2, 2)
    assert (signals.running, signals.waiting, signals.kv_usage) == (4.0, 2.0, 0.5)
    assert signals.arrivals_per_second == 4.5
    assert [step.pod for step in signals.steps] == ["a", "b"]
    assert signals.latencies[0].objective == TTFT
    assert signals.rejected == {}


async def test_samples_of_long_ago_are_those_of_nobody() -> None:
    async with prometheus(
        lambda name: [({"pod": "a"}, str(NOW - 60))] if name == "age" else answer_all(name)
    ) as url:
        signals = await observe(url)
    assert signals.reporting_replicas == 0
    assert signals.running is None
    assert signals.arrival_rate is None
    assert "older than" in signals.rejected["age"]


async def test_not_a_number_is_unknown_and_no_zero() -> None:
    async with prometheus(lambda name: [({}, "NaN")] if name == TTFT.name else answer_all(name)) as url:
        signals = await observe(url)
    assert signals.latencies == ()


async def test_without_the_gateway_arrivals_are_what_finished_and_what_piled_up() -> None:
    async with prometheus(lambda name: [] if "arrivals" in name else answer_all(name)) as url:
        signals = await observe(url)
    assert signals.arrivals_per_second == 1.0


async def test_a_silent_prometheus_leaves_everything_unknown() -> None:
    signals = await observe("http://127.0.0.1:9")
    assert signals.replicas == 2
    assert (signals.arrival_rate, signals.running, signals.waiting) == (None, None, None)
    assert "did not answer" in signals.rejected["running"]


async def test_a_slow_prometheus_is_given_up() -> None:
    async with prometheus(answer_all, delay_seconds=0.6) as url:
        signals = await observe(url, Windows(timeout=0.2))
    assert signals.running is None
    assert "within 0.2 s" in signals.rejected["running"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"status": "error", "error": "parse error"}, "parse error"),
        ([], "not a JSON object"),
        ({"status": "success", "data": {}}, "unknown shape"),
    ],
)
def test_an_answer_that_is_none_is_refused_with_the_reason(body: Any, said: str) -> None:
    with pytest.raises(SignalError, match=said):
        parse_samples(body)
