"""`fetch_reading` against a real HTTP server that answers as Prometheus does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.reading import Reading
from millrace_operator.autoscale.windows import DEFAULT_WINDOWS
from millrace_operator.cluster.kinds import ServiceKey
from millrace_operator.scaling.signals import fetch_reading
from tests.addresses import needs_ipv6

NOW = 1_700_000_000.0
TTFT = Objective("TimeToFirstToken", 95, 1.0)
SERIES = [{"metric": {"namespace": "team", "service": "chat", "signal": "running"}, "value": [NOW, "2"]}]


@asynccontextmanager
async def prometheus(
    body: Any, asked: list[str], delay_seconds: float = 0.0, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    async def query(request: web.Request) -> web.Response:
        asked.append(str((await request.post())["query"]))
        await asyncio.sleep(delay_seconds)
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/api/v1/query", query)
    async with TestServer(app, host=host) as server:
        yield str(server.make_url(""))


async def ask(url: str, *objectives: Objective, timeout: float = 2.0) -> Reading:
    async with aiohttp.ClientSession() as session:
        return await fetch_reading(session, url, objectives, NOW, DEFAULT_WINDOWS, timeout=timeout)


async def test_one_query_asks_for_everything_and_once_for_each_percentile() -> None:
    asked: list[str] = []
    stricter = Objective("TimeToFirstToken", 95, 0.2)
    async with prometheus({"status": "success", "data": {"result": SERIES}}, asked) as url:
        reading = await ask(url, TTFT, stricter, Objective("TimeToFirstToken", 99, 1.0))
    assert [sample.value for sample in reading.series[ServiceKey("team", "chat")]["running"]] == [2.0]
    assert len(asked) == 1
    assert asked[0].count("histogram_quantile(0.95") == asked[0].count("histogram_quantile(0.99") == 1


@needs_ipv6
async def test_prometheus_may_have_an_ipv6_address() -> None:
    async with prometheus({"status": "success", "data": {"result": SERIES}}, [], host="::1") as url:
        assert "[::1]" in url
        reading = await ask(url)
    assert reading.failure is None
    assert len(reading.series) == 1


async def test_a_silent_prometheus_is_a_reason() -> None:
    reading = await ask("http://127.0.0.1:9")
    assert reading.series == {}
    assert "did not answer" in (reading.failure or "")


async def test_a_slow_prometheus_is_given_up() -> None:
    async with prometheus({}, [], delay_seconds=0.6) as url:
        reading = await ask(url, timeout=0.2)
    assert "within 0.2 s" in (reading.failure or "")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"status": "error", "error": "parse error"}, "parse error"),
        ([], "not a JSON object"),
        ({"status": "success", "data": {}}, "unknown shape"),
    ],
)
async def test_an_answer_that_is_none_is_refused_with_the_reason(body: Any, said: str) -> None:
    async with prometheus(body, []) as url:
        reading = await ask(url)
    assert said in (reading.failure or "")
