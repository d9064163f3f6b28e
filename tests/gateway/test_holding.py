"""A service that may have no replica: its requests wait for one, within bounds."""

import asyncio
import tracemalloc
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from millrace_gateway.front import attempts, early_stream
from millrace_gateway.front.body_budget import HELD_BYTES, BodyBudget
from millrace_gateway.front.headers import RequestHeaders, drop_credentials
from millrace_gateway.front.holding import WOKEN_AT_ONCE, Awaited, Holder
from millrace_gateway.http.head import write_headers
from millrace_gateway.http.limits import ConnectionLimits
from millrace_gateway.http.request import Request
from millrace_gateway.http.request_parser import RequestHead, RequestParser
from millrace_gateway.route.objects import ServiceKey, read_service
from millrace_runtime.contract import ANNOTATION_LEAVING, HEADER_DRAINING
from testing.gateway_bench import shared
from tests.gateway.conftest import Bench, make_pod, make_service, next_address

SLEEPER = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 2}
BODY = b'{"model": "chat"}'


def add_sleeper(bench: Bench, wait: str = "30s", **scaling: Any) -> None:
    service = make_service("shop", "chat")
    service["spec"]["scaling"] = {**SLEEPER, "activation": {"maxWait": wait}, **scaling}
    bench.gateway.service_sinks[0].apply(service)


async def answer(_request: web.Request) -> web.Response:
    return web.json_response({"text": "hello"})


async def ask(bench: Bench, headers: dict[str, str] | None = None) -> int:
    async with bench.client.post(f"{bench.url}/v1/completions", data=BODY, headers=headers) as found:
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


async def test_only_those_are_asked_whose_services_have_news_and_each_group_once() -> None:
    asked: list[str] = []

    def ask_for(name: str) -> Awaited:
        def may_go(_tried: Collection[str]) -> bool:
            asked.append(name)
            return False

        return Awaited((chat, twin) if name == "chat" else (other,), may_go, {"p1"})

    holder = Holder(lambda: None)
    chat, other, twin = (ServiceKey("shop", name) for name in ("chat", "other", "twin"))
    waits = [asyncio.create_task(holder.wait(60.0, ask_for(name))) for name in ["chat"] * 5 + ["other"] * 3]
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
        assert sorted(asked) == expected
    assert holder.num_held == 8
    await end(*waits)
    assert holder.num_held == 0
    assert (holder._groups, holder._groups_of) == ({}, {})


async def test_ten_thousand_requests_are_woken_once_each_and_those_that_were_refused_wait_on() -> None:
    woken: list[bool] = []
    is_there, num_asked = False, 0

    def may_go(tried: Collection[str]) -> bool:
        nonlocal num_asked
        num_asked += 1
        return is_there and "p1" not in tried

    async def wait(tried: set[str]) -> None:
        woken.append(await holder.wait(60.0, Awaited((key,), may_go, tried)))

    holder, key = Holder(lambda: None), ServiceKey("shop", "chat")
    waits = [asyncio.create_task(wait({"p1"} if number < 100 else set())) for number in range(10_000)]
    await asyncio.sleep(0)
    is_there, num_asked = True, 0
    for _ in range(3):
        holder.release([key])
    assert num_asked <= 3 * (1 + 100) + WOKEN_AT_ONCE
    await asyncio.wait(waits[100:])
    assert (woken, holder.num_held) == ([True] * 9_900, 100)
    await end(*waits)


async def test_a_wake_lets_some_tens_go_in_each_turn_of_the_loop() -> None:
    there, woken = [False], 0

    async def wait() -> None:
        nonlocal woken
        may_go = await holder.wait(60.0, Awaited((key,), lambda _: there[0]))
        woken += may_go

    holder, key = Holder(lambda: None), ServiceKey("shop", "chat")
    waits = [asyncio.create_task(wait()) for _ in range(500)]
    await asyncio.sleep(0)
    there[0] = True
    for turn in range(1, 200):
        holder.release([key])  # other news of the service change nothing
        before = woken
        await asyncio.sleep(0)
        assert woken - before <= WOKEN_AT_ONCE
        if turn == 5:  # the replica goes, and comes again
            there[0] = False
        if turn == 15:
            assert holder.num_held >= 500 - 6 * WOKEN_AT_ONCE
            there[0] = True
    await asyncio.gather(*waits)
    assert (woken >= 500 - WOKEN_AT_ONCE, holder.num_held) == (True, 0)


HEADS = {
    "tiny headers": (b"/", [b"a:"] * 120),
    "headers for the replica": (b"/", [b"accept-%d: %b" % (number, b"x" * 480) for number in range(120)]),
    "a long path": (b"/" + b"a" * 8_000 + b"%F0%9F%98%80", []),
    "a usual head": (b"/v1/completions", [b"accept: */*", b"user-agent: curl"]),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_held_head_counts_what_it_takes(name: str) -> None:
    target, lines = HEADS[name]
    head = b"\r\n".join([b"POST %b HTTP/1.1" % target, b"host: a", *lines, b"\r\n"])
    budget, heads, kept = BodyBudget(1 << 30), list[RequestHead](), list[Any]()
    receiver: Any = SimpleNamespace(take_head=heads.append, take_body=None, take_end=lambda: None)
    tracemalloc.start()
    for _ in range(10):
        parser = RequestParser(receiver, ConnectionLimits())
        parser.feed(head)
        request = Request(cast("Any", None), heads.pop())
        share = budget.open_share("shop", head_bytes=request.num_head_bytes)
        assert Holder(lambda: None).has_room(share)
        sent = write_headers(RequestHeaders().choose(request.headers))
        kept.append((parser, request, sent, drop_credentials(request.target)))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 2 < budget.num_bytes < 3 * used + 10 * HELD_BYTES
    assert used < budget.num_bytes + 10 * HELD_BYTES


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


ROOM_FOR_TWO = {"body_memory_bytes": 4 * HELD_BYTES + 1000}
"""A namespace has a half when it is alone."""


@pytest.mark.parametrize("bench", [ROOM_FOR_TWO], indirect=True)
async def test_what_goes_beyond_the_memory_is_refused_and_leaves_room_for_others(
    bench: Bench,
) -> None:
    add_sleeper(bench)
    asked = [asyncio.create_task(ask(bench)) for _ in range(2)]
    await bench.until(lambda: bench.gateway.holder.num_held == 2)
    assert bench.value("millrace_gateway_body_bytes") == 2 * HELD_BYTES
    assert await ask(bench) == 503
    with shared(bench.gateway.bodies, "search") as share:
        assert bench.gateway.holder.has_room(share)
        assert bench.gateway.holder.has_room(share)  # once counted, it has its room
    await wake(bench)
    assert await asyncio.gather(*asked) == [200] * 2
    await bench.until(lambda: not bench.value("millrace_gateway_body_bytes"))


async def test_the_heads_of_held_requests_count(bench: Bench) -> None:
    add_sleeper(bench)
    asked = asyncio.create_task(ask(bench, headers={"Accept": "x" * 50_000}))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    assert bench.value("millrace_gateway_body_bytes") > 100_000
    await end(asked)


async def test_a_gateway_that_ends_holds_nothing(bench: Bench) -> None:
    add_sleeper(bench)
    asked = asyncio.create_task(ask(bench))
    await bench.until(lambda: bench.gateway.holder.num_held == 1)
    async with asyncio.timeout(5):
        await bench.gateway.drain(bench.sites)
    assert await asked == 503


@pytest.mark.parametrize("bench", [{"body_memory_bytes": HELD_BYTES}], indirect=True)
async def test_a_request_that_is_refused_at_once_is_told_as_well(bench: Bench) -> None:
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
    monkeypatch.setattr(attempts, "REFUSED_SECONDS", 0.05)
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


async def test_a_stream_whose_only_replica_refuses_gets_comments(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new try began the ten seconds again."""
    monkeypatch.setattr(attempts, "REFUSED_SECONDS", 0.02)
    monkeypatch.setattr(early_stream, "BEGIN_SECONDS", 0.2)
    add_sleeper(bench)
    bench.add_pod("shop", "chat", "refuses", next_address())
    url, body = f"{bench.url}/v1/completions", b'{"model": "chat", "stream": true}'
    async with asyncio.timeout(5), bench.client.post(url, data=body) as found:
        assert found.status == 200
        assert await found.content.readline() == b": waiting\n"


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
