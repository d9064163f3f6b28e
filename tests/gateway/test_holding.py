"""A service that may have no replica: its requests wait for one, within bounds."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from millrace_gateway.front import proxy
from millrace_gateway.front.holding import Awaited, Holder, HoldLimits
from millrace_gateway.route.objects import ServiceKey, read_service
from millrace_runtime.contract import ANNOTATION_LEAVING, HEADER_DRAINING
from tests.gateway.conftest import Bench, make_pod, make_service, next_address

SLEEPER = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 2}
BODY = b'{"model": "chat"}'


def add_sleeper(bench: Bench, wait: str = "30s", **scaling: Any) -> None:
    service = make_service("shop", "chat")
    service["spec"]["scaling"] = {**SLEEPER, "activation": {"maxWait": wait}, **scaling}
    bench.gateway.service_sinks[0].apply(service)


async def answer(_request: web.Request) -> web.Response:
    return web.json_response({"text": "hello"})


async def ask(bench: Bench, model: str = "chat") -> int:
    body = BODY.replace(b"chat", model.encode())
    async with bench.client.post(f"{bench.url}/v1/completions", data=body) as found:
        await found.read()
        return found.status


async def end(*asked: asyncio.Task[int]) -> None:
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def wake(bench: Bench) -> None:
    """A replica of the service becomes Ready, as the watch tells."""
    await bench.add_upstream("shop", "chat", answer, next_address())
    bench.gateway.replica_sinks[0]._on_news([ServiceKey("shop", "chat")])


async def test_requests_wait_until_a_replica_is_ready(bench: Bench) -> None:
    add_sleeper(bench)
    asked = [asyncio.create_task(ask(bench)) for _ in range(20)]
    await bench.until(lambda: bench.gateway.holder.num_held == 20)
    assert bench.gateway.activity.count_open() == {"shop/chat": 20}
    await wake(bench)
    assert await asyncio.gather(*asked) == [200] * 20
    assert bench.gateway.holder.num_held == 0
    await bench.until(lambda: bench.gateway.activity.count_open() == {})


async def test_only_those_are_asked_whose_services_have_news() -> None:
    asked: list[str] = []

    def ask_for(name: str) -> bool:
        asked.append(name)
        return False

    holder = Holder(HoldLimits(), lambda: None)
    chat, other, twin = (ServiceKey("shop", name) for name in ("chat", "other", "twin"))
    waits = [
        asyncio.create_task(holder.wait(chat, 60.0, Awaited((chat, twin), lambda: ask_for("chat")))),
        asyncio.create_task(holder.wait(other, 60.0, Awaited((other,), lambda: ask_for("other")))),
    ]
    await asyncio.sleep(0)
    for keys, expected in (
        ((other,), ["other"]),
        ((twin,), ["chat"]),
        ((chat, twin), ["chat"]),
        ((ServiceKey("shop", "third"),), []),
        (None, ["chat", "other"]),
    ):
        asked.clear()
        holder.release(keys)
        assert asked == expected
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert holder.num_held == 0
    assert not holder._waiting_for


async def test_a_replica_of_another_service_with_the_same_name_releases_a_request(bench: Bench) -> None:
    add_sleeper(bench)
    twin = make_service("shop", "twin", served="chat")
    twin["spec"]["scaling"] = {**SLEEPER}
    bench.gateway.service_sinks[0].apply(twin)
    asked = asyncio.create_task(ask(bench))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    address = next_address()
    await bench.add_upstream("shop", "twin", answer, address)
    pod = make_pod("shop", "twin", "of-twin", address=address)
    bench.gateway.replica_sinks[0].apply(pod)
    assert await asked == 200


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


@pytest.mark.parametrize(
    "limits",
    [
        HoldLimits(3, share=1.0, namespace_share=1.0),
        HoldLimits(most=12),
    ],
)
async def test_what_goes_beyond_the_bounds_is_refused_at_once(bench: Bench, limits: HoldLimits) -> None:
    bench.gateway.holder._limits = limits
    add_sleeper(bench)
    asked = [asyncio.create_task(ask(bench)) for _ in range(3)]
    await bench.until(lambda: bench.gateway.holder.num_held == 3)
    assert await ask(bench) == 503
    await wake(bench)
    assert await asyncio.gather(*asked) == [200] * 3


async def test_one_service_leaves_room_for_the_others(bench: Bench) -> None:
    bench.gateway.holder._limits = HoldLimits(most=4)
    add_sleeper(bench)
    other = make_service("shop", "other")
    other["spec"]["scaling"] = SLEEPER
    bench.gateway.service_sinks[0].apply(other)
    held = [asyncio.create_task(ask(bench, model)) for model in ("chat", "other")]
    await bench.until(lambda: bench.gateway.holder.num_held == 2)
    assert await ask(bench) == 503
    another, room = ServiceKey("shop", "third"), bench.gateway.holder.has_room
    assert not room(another)  # its namespace has a half
    assert room(ServiceKey("search", "third"))
    await end(*held)


async def test_a_gateway_that_ends_holds_nothing(bench: Bench) -> None:
    add_sleeper(bench)
    asked = asyncio.create_task(ask(bench))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    async with asyncio.timeout(5):
        await bench.gateway.drain(bench.sites)
    assert await asked == 503


async def test_a_request_that_is_refused_at_once_is_told_as_well(bench: Bench) -> None:
    bench.gateway.holder._limits = HoldLimits(most=0)
    add_sleeper(bench)
    assert await ask(bench) == 503
    assert list(bench.gateway.activity.list_ends()) == ["shop/chat"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "completions"), ("POST", "nonsense"), ("POST", "completions/x"), ("PUT", "chat/completions")],
)
async def test_what_asks_for_no_work_neither_wakes_a_service_nor_keeps_it_awake(
    bench: Bench, method: str, path: str
) -> None:
    add_sleeper(bench)
    url, host = f"{bench.url}/v1/{path}", {"Host": "chat.shop.svc"}
    async with bench.client.request(method, url, headers=host, data=BODY) as found:
        assert found.status == 503
    await bench.add_upstream("shop", "chat", answer)
    async with bench.client.request(method, url, headers=host, data=BODY) as found:
        assert found.status == 200  # whatever the replica says of it
    assert bench.gateway.activity.list_ends() == {}


async def test_a_request_waits_while_the_last_replica_goes(bench: Bench) -> None:
    add_sleeper(bench)
    uid = await bench.add_upstream("shop", "chat", answer, address := next_address())
    leaver = make_pod("shop", "chat", uid, address=address)
    leaver["metadata"]["annotations"] = {ANNOTATION_LEAVING: "2026-01-01T00:00:00Z"}
    bench.gateway.replica_sinks[0].apply(leaver)
    asked = asyncio.create_task(ask(bench))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    bench.gateway.replica_sinks[0].apply(make_pod("shop", "chat", uid, address=address))  # it stays after all
    assert await asked == 200


async def test_a_request_that_the_last_replica_refuses_waits_for_the_next_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "REFUSED_SECONDS", 0.05)
    add_sleeper(bench)
    num_asked = 0

    async def refuse(_request: web.Request) -> web.Response:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 3:
            return web.json_response({"text": "hello"})
        return web.Response(status=503, headers={HEADER_DRAINING: "1"})

    await bench.add_upstream("shop", "chat", refuse)
    async with asyncio.timeout(10):  # it waits for 30 s at most
        assert await ask(bench) == 200
    assert num_asked == 3


async def test_where_the_one_that_stays_refuses_the_one_that_leaves_is_asked(bench: Bench) -> None:
    add_sleeper(bench)
    uid = await bench.add_upstream("shop", "chat", answer, address := next_address())
    leaver = make_pod("shop", "chat", uid, address=address)
    leaver["metadata"]["annotations"] = {ANNOTATION_LEAVING: "2026-01-01T00:00:00Z"}
    bench.gateway.replica_sinks[0].apply(leaver)
    bench.add_pod("shop", "chat", "refuses", next_address())
    async with asyncio.timeout(10):
        assert await ask(bench) == 200


async def test_a_held_request_learns_that_its_service_is_gone_or_rests_no_more(bench: Bench) -> None:
    add_sleeper(bench)
    asked = asyncio.create_task(ask(bench))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    add_sleeper(bench, minReplicas=1)
    assert await asked == 503
    add_sleeper(bench)
    asked = asyncio.create_task(ask(bench))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    bench.gateway.service_sinks[0].delete(make_service("shop", "chat"))
    assert await asked == 404


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
