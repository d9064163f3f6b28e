"""What the bodies of requests may take of a gateway's memory and time."""

import asyncio
import base64
import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
from aiohttp import web

from millrace_gateway.front.body_budget import BodyBudget
from millrace_gateway.route.body_fields import WHOLE_BYTES
from testing.gateway_bench import shared

HOST = {"Host": "chat.team.svc"}
PATH = "/v1/completions"


def test_a_client_leaves_room_in_its_namespace_for_the_others() -> None:
    budget = BodyBudget(64)
    with shared(budget, None) as flood, shared(budget, None) as other, shared(budget, "shop") as stranger:
        assert flood.grow(6)
        assert flood.assign("team", "ada")
        assert flood.grow(10)
        with shared(budget, "team") as second:
            assert second.assign("team", "ada")
            assert not second.grow(1)  # a half of the namespace's half
            assert second.grow(0)
            assert flood.grow(16)  # a client's only body may be as large as any
            flood.release()
            assert flood.grow(10)
            assert second.grow(6)
        assert other.assign("team", "bob")
        assert other.grow(8)
        assert other.assign("team")  # it stays bob's
        assert stranger.grow(20)
        assert budget._clients == {"ada": 10, "bob": 8}
    assert (budget.num_bytes, budget._parts, budget._clients) == (0, {}, {})


def test_a_part_grows_while_as_much_is_left_free() -> None:
    budget = BodyBudget(12)
    with shared(budget, "team") as first, shared(budget, "team") as second, shared(budget, None) as unknown:
        assert first.grow(5)
        assert not second.grow(2)
        assert second.grow(1)  # a half is the most
        assert not unknown.grow(4)
        assert unknown.grow(3)
        assert not unknown.assign("team")
        assert budget.num_bytes == 6  # who is refused has nothing
        with shared(budget, "other") as third:
            assert third.grow(3)
        first.release()
        assert unknown.grow(3)
        assert unknown.assign("other")
        assert budget._parts == {"team": 1, "other": 3}
    assert (budget.num_bytes, budget._parts) == (0, {})


@pytest.mark.parametrize("bench", [{"body_memory_bytes": 3000}], indirect=True)
async def test_bodies_beyond_the_budget_are_refused_until_others_end(bench: Any) -> None:
    release = asyncio.Event()

    async def hold(_request: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    bench.add_service("team", "chat")
    bench.add_service("team", "other")
    await bench.add_upstream("team", "chat", hold)

    def ask(num_bytes: int, host: dict[str, str] = HOST) -> Any:
        return bench.client.post(bench.url + PATH, data=b"x" * num_bytes, headers=host)

    first = asyncio.create_task(ask(1000))
    await bench.until(lambda: bench.value("millrace_gateway_body_bytes") == 1000)
    for num_bytes in (1000, 2500):  # over the namespace's half, and over all
        async with ask(num_bytes, {"Host": "other.team.svc"}) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
            assert (await refused.json())["error"]["code"] == "gateway_overloaded"
    assert bench.value("millrace_gateway_refusals_total", code="gateway_overloaded") == 2
    told = {"namespace": "team", "service": "other", "outcome": "refused"}
    assert bench.value("millrace_gateway_requests_finished_total", **told) == 2
    release.set()
    async with await first as answer:
        assert answer.status == 200
    await bench.until(lambda: bench.value("millrace_gateway_body_bytes") == 0)
    async with ask(1000) as answer:
        assert answer.status == 200


@pytest.fixture
def intake() -> Iterator[Callable[[], int]]:
    """How many bytes are there still that were taken in, as Python knows it."""

    def count() -> int:
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/http/*.py")])
        return sum(one.size for one in found.statistics("filename"))

    tracemalloc.start()
    yield count
    tracemalloc.stop()


async def test_a_body_is_let_go_when_its_answer_begins(bench: Any, intake: Callable[[], int]) -> None:
    release, held = asyncio.Event(), []

    async def stream(request: web.Request) -> web.StreamResponse:
        if request.path != PATH:  # a slow test's replica is asked for its load
            return web.Response(status=404)
        await request.read()
        held.append(intake())
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"begun")
        await release.wait()
        return answer

    bench.add_service("team", "chat", served="llama")
    await bench.add_upstream("team", "chat", stream)
    body = json.dumps({"model": "llama", "prompt": "x" * 500_000}).encode()
    async with bench.client.post(bench.url + PATH, data=body, headers={"X-Long": "x" * 50_000}) as answer:
        assert await answer.content.readany() == b"begun"
        assert bench.value("millrace_gateway_body_bytes") == 0
        held.append(intake())
        release.set()
        assert await answer.content.read() == b""
    assert held[0] >= 500_000
    assert held[1] < 40_000


@pytest.mark.parametrize("bench", [{"body_seconds": 0.05}], indirect=True)
async def test_a_body_that_does_not_come_is_refused_and_takes_no_room(bench: Any) -> None:
    bench.add_service("team", "chat")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]))
    writer.write(f"POST {PATH} HTTP/1.1\r\nHost: chat.team.svc\r\nContent-Length: 8000000\r\n\r\n{{".encode())
    async with asyncio.timeout(5):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = json.loads(await reader.readexactly(int(head.partition("content-length: ")[2].split()[0])))
    assert head.startswith("HTTP/1.1 408 ")
    assert "connection: close" in head
    assert body["error"]["code"] == "request_timeout"
    assert bench.value("millrace_gateway_body_bytes") == 0
    writer.close()


async def test_a_request_whose_body_is_under_way_counts_its_head(bench: Any) -> None:
    bench.add_service("team", "chat")
    _, writer = await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]))
    head = f"POST {PATH} HTTP/1.1\r\nHost: chat.team.svc\r\nX-A: {'x' * 9_000}\r\nContent-Length: 8\r\n\r\n"
    writer.write(head.encode())
    await bench.until(lambda: bench.value("millrace_gateway_body_bytes") > 18_000)
    writer.close()
    await bench.until(lambda: bench.value("millrace_gateway_body_bytes") == 0)


@pytest.mark.parametrize("websocket", [False, True])
async def test_a_long_head_at_a_silent_replica_counts_until_its_answer(
    bench: Any, *, websocket: bool
) -> None:
    """Four hundred of them took 84 MiB, and counted nothing."""
    release = asyncio.Event()

    async def hold(_request: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", hold)
    sent = HOST | {"X-Long": "x" * 50_000}
    if websocket:
        sent |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    method, path = ("GET", "/v1/stream") if websocket else ("POST", PATH)
    asked = asyncio.create_task(bench.client.request(method, bench.url + path, data=b"", headers=sent))
    await bench.until(lambda: bench.value("millrace_gateway_body_bytes") > 100_000)
    release.set()
    async with await asked as answer:
        assert answer.status == (502 if websocket else 200)
    assert bench.value("millrace_gateway_body_bytes") == 0


async def test_a_long_body_with_its_model_in_the_middle_is_told_to_write_it_first(bench: Any) -> None:
    got: list[bytes] = []

    async def record(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.json_response({})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", record)
    long = "." * WHOLE_BYTES
    body = f'{{"prompt": "{long}", "model": "chat", "user": "{long}"}}'.encode()
    async with bench.client.post(bench.url + PATH, data=BytesIO(body), headers={"Host": "gw"}) as answer:
        assert (answer.status, got) == (400, [])
        assert 'write "model" first' in (await answer.json())["error"]["message"]
    async with bench.client.post(bench.url + PATH, data=BytesIO(body), headers=HOST) as answer:
        assert (answer.status, got) == (200, [body])  # the Host names the service


async def open_body(bench: Any, *, key: str = "", host: str = "gw", num_bytes: int = 0) -> Any:
    """Begin a request whose body never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]))
    lines = [f"POST {PATH} HTTP/1.1", f"Host: {host}", "Content-Length: 1000000", f"Api-Key: {key}", "\r\n"]
    writer.write("\r\n".join(lines).encode() + b"x" * num_bytes)
    return reader, writer


@pytest.mark.parametrize("bench", [{"body_memory_bytes": 100_000}], indirect=True)
async def test_strangers_who_fill_the_part_of_unknown_services_refuse_nobody_with_a_key(bench: Any) -> None:
    """Nor those whose body comes with its head."""

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", answer)
    entry = json.dumps({"sha256": [hashlib.sha256(b"mr-ada").hexdigest()]}).encode()
    secret = {
        "metadata": {"namespace": "team", "name": "keys"},
        "data": {"ada": base64.b64encode(entry).decode()},
    }
    bench.gateway.tenancy.keys.apply(secret)
    sizes = (25_000, 10_000, 1_000, 1_000, 1_000)
    writers = [(await open_body(bench, num_bytes=num_bytes))[1] for num_bytes in sizes]
    await bench.until(lambda: bench.value("millrace_gateway_body_bytes") > 40_000)
    reader, writer = await open_body(bench, num_bytes=5_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
    body = json.dumps({"model": "chat", "prompt": "x" * 9_000}).encode()
    async with bench.client.post(bench.url + PATH, data=body) as found:
        assert found.status == 200
    taken = bench.value("millrace_gateway_body_bytes")
    writers += [writer, (await open_body(bench, key="mr-ada", num_bytes=9_000))[1]]
    await bench.until(lambda: bench.value("millrace_gateway_body_bytes") >= taken + 9_000)
    assert set(bench.gateway.bodies._parts) == {None, "team"}
    for writer in writers:
        writer.close()
