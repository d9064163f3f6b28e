"""A service that may have no replica: its requests wait for one, within bounds."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from millrace_gateway.holding import HoldLimits
from millrace_gateway.objects import read_service
from tests.gateway.conftest import Bench, make_service, next_address

SLEEPER = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 2}
BODY = b'{"model": "chat"}'


def add_sleeper(bench: Bench, wait: str = "30s", **scaling: Any) -> None:
    service = make_service("shop", "chat")
    service["spec"]["scaling"] = {**SLEEPER, "activation": {"maxWait": wait}, **scaling}
    bench.gateway.service_sinks[0].apply(service)


async def answer(_request: web.Request) -> web.Response:
    return web.json_response({"text": "hello"})


async def ask(bench: Bench) -> int:
    async with bench.client.post(f"{bench.url}/v1/completions", data=BODY) as found:
        await found.read()
        return found.status


async def wake(bench: Bench) -> None:
    """A replica of the service becomes Ready."""
    await bench.add_upstream("shop", "chat", answer, next_address())
    bench.gateway.holder.release()


async def test_requests_wait_until_a_replica_is_ready(bench: Bench) -> None:
    add_sleeper(bench)
    asked = [asyncio.create_task(ask(bench)) for _ in range(20)]
    await bench.until(lambda: bench.gateway.holder.num_held == 20)
    assert bench.gateway.activity.count_open() == {"shop/chat": 20}
    await wake(bench)
    assert await asyncio.gather(*asked) == [200] * 20
    assert bench.gateway.holder.num_held == 0
    await bench.until(lambda: bench.gateway.activity.count_open() == {})


async def test_a_request_that_waits_too_long_is_refused(bench: Bench) -> None:
    add_sleeper(bench, "100ms")
    assert await ask(bench) == 503
    assert bench.gateway.holder.num_held == 0


async def test_a_client_that_leaves_waits_no_more(bench: Bench) -> None:
    add_sleeper(bench)
    asked = asyncio.create_task(ask(bench))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    asked.cancel()
    await bench.until(lambda: bench.gateway.holder.num_held == 0)
    assert bench.gateway.activity.count_open() == {}


@pytest.mark.parametrize("limits", [HoldLimits(most=3), HoldLimits(most_bytes=3 * len(BODY))])
async def test_what_goes_beyond_the_bounds_is_refused_at_once(bench: Bench, limits: HoldLimits) -> None:
    bench.gateway.holder._limits = limits
    add_sleeper(bench)
    asked = [asyncio.create_task(ask(bench)) for _ in range(3)]
    await bench.until(lambda: bench.gateway.holder.num_held == 3)
    assert await ask(bench) == 503
    await wake(bench)
    assert await asyncio.gather(*asked) == [200] * 3


@pytest.mark.parametrize("scaling", [{"minReplicas": 1}, {"mode": "External"}, {"mode": "DryRun"}])
async def test_a_service_that_does_not_rest_is_answered_at_once(
    bench: Bench, scaling: dict[str, Any]
) -> None:
    add_sleeper(bench, **scaling)
    assert await ask(bench) == 503


@pytest.mark.parametrize(
    ("scaling", "seconds"),
    [({}, 300.0), ({"activation": {"maxWait": "90s"}}, 90.0), ({"activation": {"maxWait": "soon"}}, 300.0)],
)
def test_how_long_a_request_waits_is_the_services_to_say(scaling: dict[str, Any], seconds: float) -> None:
    service = make_service("shop", "chat")
    service["spec"]["scaling"] = {**SLEEPER, **scaling}
    assert read_service(service).hold_seconds == seconds
