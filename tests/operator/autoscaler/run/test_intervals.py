"""Replicas may be scraped at other intervals than every 5 s, each service at its own."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings
from millrace_operator.autoscaler.run.tick import ScalingLoop
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import ServiceKey
from millrace_runtime.contract import LABEL_SERVICE
from testing.world import KEY, make_pod, make_service, ready_status

SLOW = ServiceKey(KEY.namespace, "slow")
INTERVALS = {KEY: 5.0, SLOW: 30.0}
BEGAN = 1_700_000_010.0


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
async def prometheus(asked: list[str]) -> AsyncIterator[str]:
    """Answers when each service's pod was scraped last."""

    async def answer(request: web.Request) -> web.Response:
        form = await request.post()
        asked.append(str(form["query"]))
        at = float(form["time"])  # type: ignore[arg-type]
        result = [
            {
                "metric": {
                    "namespace": key.namespace,
                    "pod": f"{key.name}-1",
                    "signal": "age",
                },
                "value": [at, str(at // interval * interval)],
            }
            for key, interval in INTERVALS.items()
        ]
        return web.json_response({"status": "success", "data": {"result": result}})

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


def fill_cache() -> Cache:
    """Two services with a ready pod each."""
    cache = Cache()
    for key in INTERVALS:
        service, pod = (
            make_service(scaling={"mode": "Automatic"}),
            make_pod(f"{key.name}-1", **ready_status()),
        )
        service["metadata"]["name"] = key.name
        pod["metadata"]["labels"][LABEL_SERVICE] = key.name
        cache.put(service)
        cache.put(pod)
    return cache


async def test_services_of_one_interval_share_a_question_and_others_ask_their_own(
    prometheus: str, asked: list[str]
) -> None:
    times = [BEGAN + seconds for seconds in (0, 5, 10, 30, 35, 55)]
    clock = iter([*times[:5], *times[4:], times[5]]).__next__
    loop = ScalingLoop(
        fill_cache(), ScalingSettings(PrometheusSettings(prometheus)), lambda _: None, lambda: True, clock
    )
    async with aiohttp.ClientSession() as session:
        for _ in times:
            await loop.tick(session)
    # A group asks two questions. After 30 s it is known that one of the two is scraped every 30 s: two more
    # ticks, with a group for each.
    assert len(asked) == 2 * (4 + 2 * 2)
    assert sum("[20s]" in query for query in asked) == 2 * 6
    assert sum("[120s]" in query and "[20s]" not in query for query in asked) == 2 * 2
    # Its sample is 25 s old by now, and fresh all the same.
    assert loop.considered[SLOW].signals.reporting == {"slow-1"}
