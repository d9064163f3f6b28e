"""The real proxy between a real client and real upstreams."""

import asyncio
import gzip
import json
import socket
from contextlib import nullcontext
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from yarl import URL

from millrace_gateway.front.attempts import MOST_FULL
from millrace_gateway.route.ejection import MOST_ERRORS
from millrace_runtime.contract import HEADER_DRAINING
from testing.addresses import needs_ipv6
from tests.gateway.conftest import Bench, Handler, next_address

BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
COMPLETIONS = "/v1/chat/completions"
FINISHED = "millrace_gateway_requests_finished_total"
ARRIVED = "millrace_gateway_requests_received_total"
IN_FLIGHT = "millrace_gateway_requests_in_flight"
CHAT = {"namespace": "team", "service": "chat"}


async def echo(request: web.Request) -> web.Response:
    seen = {
        "path": request.path_qs,
        "headers": dict(request.headers),
        "body": (await request.read()).decode(),
    }
    return web.json_response(seen)


def finished(bench: Bench, outcome: str) -> float | None:
    return bench.value(FINISHED, **CHAT, outcome=outcome)


async def post(
    bench: Bench, body: Any = BODY, host: str | None = None, **fields: Any
) -> tuple[int, Any, Any]:
    headers = ({"Host": host} if host else {}) | fields.pop("headers", {})
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with bench.client.post(bench.url + COMPLETIONS, data=data, headers=headers, **fields) as response:
        return response.status, await response.json(), response.headers


async def test_a_request_goes_through_as_it_came(bench: Bench) -> None:
    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", echo)
    sent = json.dumps(BODY, indent=3).encode()
    headers = {"Connection": "keep-alive, OpenAI-Hop", "OpenAI-Hop": "1", "OpenAI-Stays": "1"}
    url = URL(f"{bench.url}{COMPLETIONS}?a=%2F%20b", encoded=True)
    async with bench.client.post(url, data=sent, headers=headers) as response:
        seen = await response.json()
    assert seen["body"] == sent.decode()
    assert seen["path"] == f"{COMPLETIONS}?a=%2F%20b"
    assert seen["headers"]["openai-stays"] == "1"
    assert "OpenAI-Hop" not in seen["headers"]
    assert seen["headers"]["Host"].endswith(":8000")


@pytest.mark.usefixtures("dead_proxies")
async def test_no_proxy_is_asked_for_a_replica(bench: Bench) -> None:
    await test_a_request_goes_through_as_it_came(bench)


async def test_the_host_decides_and_the_body_is_not_read_for_it(bench: Bench) -> None:
    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", echo)
    status, seen, _ = await post(bench, b"no json at all", host="chat.team.svc.cluster.local:8080")
    assert (status, seen["body"]) == (200, "no json at all")


def serve_as(name: str) -> Handler:
    """A replica that answers to one name, as ours do."""

    async def answer(request: web.Request) -> web.Response:
        model = (await request.json())["model"]
        return web.json_response(name, status=200 if model == name else 404)

    return answer


async def ask_by_name(bench: Bench, host: str | None, models: str) -> set[tuple[int, Any]]:
    bodies = [BODY | {"model": model, "messages": [n]} for n, model in enumerate(models.split() * 4)]
    answers = [await post(bench, body, host) for body in bodies]
    return {(status, found if status == 200 else None) for status, found, _ in answers}


@pytest.mark.parametrize("host", [None, "chat.team.svc"])
async def test_each_replica_is_asked_by_the_name_that_it_runs_with(bench: Bench, host: str | None) -> None:
    """Through an edit of the served name, and its rollback, every name reaches every replica."""
    bench.add_service("team", "chat", served="old")
    await bench.add_upstream("team", "chat", serve_as("old"))
    bench.add_service("team", "chat", served="new")
    assert await ask_by_name(bench, host, "old new team/chat") == {(200, "old")}
    assert await ask_by_name(bench, host, "none") == {(404, None)}
    new = await bench.add_upstream("team", "chat", serve_as("new"))
    assert await ask_by_name(bench, host, "old new team/chat") == {(200, "old"), (200, "new")}
    bench.gateway.catalogue.delete_replica({"metadata": {"uid": new}})
    assert await ask_by_name(bench, host, "old new team/chat") == {(200, "old")}
    bench.add_service("team", "chat", served="old")
    assert await ask_by_name(bench, host, "new") == {(404, None)}


async def test_a_request_that_a_second_replica_gets_has_that_ones_name(bench: Bench) -> None:
    bench.add_service("team", "chat", served="new")
    for number in range(3):
        bench.add_pod("team", "chat", f"dead-{number}", next_address(), served="old")
    await bench.add_upstream("team", "chat", serve_as("new"))
    assert await ask_by_name(bench, None, "team/chat new old") == {(200, "new")}


async def test_a_long_body_of_other_letters_keeps_its_size(bench: Bench) -> None:
    bench.add_service("team", "chat", served="llama")
    await bench.add_upstream("team", "chat", echo)
    sent = json.dumps({"prompt": "ы" * 300_000, "model": "team/chat"}, ensure_ascii=False).encode()
    status, seen, _ = await post(bench, sent)
    assert status == 200
    assert json.loads(seen["body"]) == json.loads(sent) | {"model": "llama"}
    assert int(seen["headers"]["Content-Length"]) == len(sent) + len(',"model":"llama"')


async def test_a_stream_passes_each_chunk_before_the_next_is_made(bench: Bench) -> None:
    turns: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Keep-Alive": "x"})
        await response.prepare(request)
        while chunk := await turns.get():
            await response.write(chunk)
        return response

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", stream)
    async with asyncio.timeout(5), bench.client.post(bench.url + COMPLETIONS, json=BODY) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert "Keep-Alive" not in response.headers
        for number in range(5):  # the next is put only when this one has arrived: any buffering would hang
            turns.put_nowait(b"data: %d\n\n" % number)
            assert await response.content.readany() == b"data: %d\n\n" % number
        assert bench.value(IN_FLIGHT, **CHAT) == 1
        turns.put_nowait(None)
        assert await response.content.readany() == b""
    assert (bench.value(ARRIVED, **CHAT), finished(bench, "completed")) == (1, 1)
    assert bench.value(IN_FLIGHT, **CHAT) == 0


@pytest.mark.parametrize("has_begun", [False, True], ids=["before the first token", "in the stream"])
async def test_a_client_that_leaves_ends_its_generation(bench: Bench, has_begun: bool) -> None:  # noqa: FBT001
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            if has_begun:
                await response.prepare(request)
                await response.write(b"token")
            started.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return response

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", generate)
    call = asyncio.create_task(post(bench))
    async with asyncio.timeout(5):
        await started.wait()
        call.cancel()
        await cancelled.wait()
    await bench.until(lambda: finished(bench, "client_left") == 1)
    assert bench.gateway.lifecycle.num_in_flight == 0
    assert bench.value(IN_FLIGHT, **CHAT) == 0


async def test_a_client_that_leaves_while_it_sends_is_forgotten(bench: Bench) -> None:
    bench.add_service("team", "chat")
    _, writer = await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: chat.team.svc\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    await bench.until(lambda: bench.gateway.lifecycle.num_in_flight)
    writer.close()
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)


async def test_a_replica_that_refuses_the_connection_is_stepped_over(bench: Bench) -> None:
    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", echo)
    bench.add_pod("team", "chat", "gone", next_address())
    assert [(await post(bench))[0] for _ in range(4)] == [200] * 4
    assert finished(bench, "completed") == 4


async def test_a_draining_replica_is_stepped_over(bench: Bench) -> None:
    asked = []

    async def drain(request: web.Request) -> web.Response:
        asked.append(await request.read())
        return web.json_response({}, status=503, headers={HEADER_DRAINING: "true"})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", drain)
    await bench.add_upstream("team", "chat", echo)
    bodies = [BODY | {"messages": [{"role": "user", "content": f"conversation {n}"}]} for n in range(12)]
    answers = [await post(bench, body) for body in bodies]
    assert [(status, json.loads(seen["body"])) for status, seen, _ in answers] == [(200, b) for b in bodies]
    assert len(asked) == 1  # once refused, it comes last for a while


async def test_any_other_503_is_the_replicas_answer(bench: Bench) -> None:
    asked = []

    async def overloaded(_request: web.Request) -> web.Response:
        asked.append(1)
        return web.json_response({"error": "full"}, status=503, headers={"Retry-After": "7"})

    bench.add_service("team", "chat")
    for _ in range(2):
        await bench.add_upstream("team", "chat", overloaded)
    status, seen, headers = await post(bench)
    assert (status, seen, headers["Retry-After"]) == (503, {"error": "full"}, "7")
    assert len(asked) == 1
    assert finished(bench, "upstream_error") == 1


async def test_a_replica_that_answers_every_request_with_an_error_gets_few(bench: Bench) -> None:
    """It answers at once, so it has the fewest requests, and is Ready all the time."""
    failed = []

    async def fail(request: web.Request) -> web.Response:
        failed.append(await request.read())
        return web.json_response({"error": "broken"}, status=500)

    async def work(request: web.Request) -> web.Response:
        await asyncio.sleep(0.01)
        return await echo(request)

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", fail)
    await bench.add_upstream("team", "chat", work)
    bodies = [BODY | {"messages": [{"role": "user", "content": f"conversation {n}"}]} for n in range(60)]
    for three in (bodies[at : at + 3] for at in range(0, len(bodies), 3)):
        await asyncio.gather(*(post(bench, body) for body in three))
    assert MOST_ERRORS <= len(failed) <= MOST_ERRORS + 2, "two more may be on their way"


async def test_a_replica_that_hangs_gets_few_more(bench: Bench) -> None:
    """No request of it ends, and silence is no failure: those that it has are its load."""
    hung: list[bytes] = []
    release = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        if request.path == COMPLETIONS:  # and not the gateway's question for its load
            hung.append(await request.read())
        await release.wait()
        return await echo(request)

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", hang)
    await bench.add_upstream("team", "chat", echo)
    asking: list[asyncio.Task[Any]] = []
    for number in range(40):
        messages = [{"role": "user", "content": f"conversation {number}"}]
        asking.append(asyncio.create_task(post(bench, BODY | {"messages": messages})))
        await bench.until(lambda: len(hung) + sum(task.done() for task in asking) == len(asking))
    assert len(hung) <= 2
    release.set()
    assert {(await task)[0] for task in asking} == {200}


async def test_a_full_replicas_429_is_its_answer_and_an_outcome_of_its_own(bench: Bench) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.json_response({"error": "full"}, status=429, headers={"Retry-After": "7"})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", refuse)
    status, seen, headers = await post(bench, BODY | {"n": 8})
    assert (status, seen, headers["Retry-After"]) == (429, {"error": "full"}, "7")
    assert (finished(bench, "refused"), finished(bench, "completed")) == (1, 0)
    assert bench.value(ARRIVED, **CHAT) == 1


async def test_a_full_replica_is_stepped_over_for_an_idle_one_and_not_ejected(bench: Bench) -> None:
    asked = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(await request.read())
        return web.json_response({"error": "full"}, status=429, headers={"Retry-After": "7"})

    bench.add_service("team", "chat")
    full = await bench.add_upstream("team", "chat", refuse)
    idle = await bench.add_upstream("team", "chat", echo)
    bodies = [BODY | {"messages": [{"role": "user", "content": f"conversation {n}"}]} for n in range(12)]
    answers = [await post(bench, body) for body in bodies]
    assert [(status, json.loads(seen["body"])) for status, seen, _ in answers] == [(200, b) for b in bodies]
    assert len(asked) > 1
    assert bench.value("millrace_gateway_retries_total", cause="full") == len(asked)
    assert not bench.gateway.balancer.is_ejected(full, 0.0)
    bench.gateway.catalogue.delete_replica({"metadata": {"uid": idle}})
    for _ in range(MOST_FULL + 2):
        await bench.add_upstream("team", "chat", refuse)
    asked.clear()
    assert [(await post(bench))[0], len(asked)] == [429, MOST_FULL]


async def test_a_429_that_breaks_off_is_a_broken_answer(bench: Bench) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=429, headers={"Content-Length": "9"})
        await response.prepare(request)
        request.transport.close()
        return response

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", break_off)
    with pytest.raises(aiohttp.ClientError):
        await post(bench)
    await bench.until(lambda: finished(bench, "upstream_error") == 1)


async def test_a_replica_that_breaks_before_its_answer_is_not_followed_by_another(bench: Bench) -> None:
    asked = []

    async def crash(request: web.Request) -> web.Response:
        asked.append(await request.read())
        request.transport.abort()
        return web.Response()

    bench.add_service("team", "chat")
    for _ in range(3):
        await bench.add_upstream("team", "chat", crash)
    status, seen, _ = await post(bench)
    assert (status, seen["error"]["code"], len(asked)) == (502, "upstream_error", 1)
    assert "The replica closed the connection before it answered" in seen["error"]["message"]
    assert finished(bench, "upstream_error") == 1


async def test_an_idle_connection_that_its_replica_closed_is_not_used_again(bench: Bench) -> None:
    async def close_after(request: web.Request) -> web.Response:
        asyncio.get_running_loop().call_later(0.01, request.transport.close)
        return await echo(request)

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", close_after)
    for _ in range(3):
        assert (await post(bench))[0] == 200
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("moment", ["before its answer", "in its answer", "on an idle connection"])
async def test_a_replica_that_broke_is_not_the_next_ones_first_choice(bench: Bench, moment: str) -> None:
    # With nothing in flight it looks like the least loaded, and one that is dying takes connections still.
    is_dying = False

    async def break_off(request: web.Request) -> web.StreamResponse:
        await request.read()
        answer = web.StreamResponse()
        if is_dying and moment != "in its answer":
            request.transport.abort()
        elif is_dying:
            await answer.prepare(request)
            await answer.write(b"half")
            request.transport.abort()
        return answer if is_dying else await echo(request)

    bench.add_service("team", "chat")
    dying = await bench.add_upstream("team", "chat", break_off)
    await bench.add_upstream("team", "chat", echo)
    if moment == "on an idle connection":
        for _ in range(2):
            await post(bench)
    is_dying = True
    outcomes = []
    for _ in range(8):
        try:
            outcomes.append((await post(bench))[0])
        except aiohttp.ClientError:
            outcomes.append(0)
    assert outcomes.count(200) >= 7, (outcomes, dying)


async def test_a_request_that_kills_its_replica_gets_no_second(bench: Bench) -> None:
    num_killed = 0

    async def answer_or_die(request: web.Request) -> web.Response:
        nonlocal num_killed
        if b"poison" not in await request.read():
            return web.json_response({})
        num_killed += 1
        request.transport.abort()
        return web.Response()

    bench.add_service("team", "chat")
    for _ in range(4):
        await bench.add_upstream("team", "chat", answer_or_die)
    for _ in range(8):  # a reusable connection to each
        await post(bench)
    assert (await post(bench, BODY | {"prompt": "poison"}))[0] == 502
    assert num_killed == 1


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_stream_broken_off_never_looks_whole(bench: Bench, kind: str) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await asyncio.sleep(0)
        request.transport.close()
        return response

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", break_off)
    received = bytearray()

    async def receive() -> None:
        async with bench.client.post(bench.url + COMPLETIONS, json=BODY) as response:
            async for chunk in response.content.iter_any():
                received.extend(chunk)

    with pytest.raises(aiohttp.ClientPayloadError):
        await receive()
    assert received.startswith(b"data: 1\n\n")
    assert (b"broke off" in received) is (kind == "text/event-stream")
    await bench.until(lambda: finished(bench, "upstream_error") == 1)


async def test_a_service_without_a_ready_replica_says_how_it_stands(bench: Bench) -> None:
    state = {"status": "False", "reason": "Unschedulable", "message": "0/3 nodes have a GPU free"}
    bench.add_service("team", "chat", ready=state)
    status, seen, headers = await post(bench)
    assert (status, headers["Retry-After"]) == (503, "5")
    assert seen["error"]["code"] == "no_ready_replica"
    assert "team" not in seen["error"]["message"]
    assert "(Unschedulable)" in seen["error"]["message"]
    assert "nodes" not in seen["error"]["message"]
    assert (bench.value(ARRIVED, **CHAT), finished(bench, "no_replica")) == (1, 1)


async def test_a_service_whose_replicas_all_refuse_says_so(bench: Bench) -> None:
    bench.add_service("team", "chat")
    bench.add_pod("team", "chat", "p1", next_address())
    bench.add_pod("team", "chat", "p2", next_address())
    status, seen, headers = await post(bench)
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "each of its 2 ready replicas refused" in seen["error"]["message"]


async def test_a_merged_name_counts_for_the_service_that_takes_the_request(bench: Bench) -> None:
    bench.add_service("team", "one", served="m")
    bench.add_service("team", "two", served="m", created="2026-02-01T00:00:00Z")
    await bench.add_upstream("team", "two", echo)
    assert (await post(bench, {"model": "m"}))[0] == 200
    assert bench.value(ARRIVED, namespace="team", service="two") == 1
    assert bench.value(ARRIVED, namespace="team", service="one") == 0


async def test_an_unknown_model_is_a_404_in_openais_shape(bench: Bench) -> None:
    bench.add_service("team", "chat")
    status, seen, _ = await post(bench, {"model": "gpt-5"})
    assert status == 404
    error = seen["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert "chat" not in error["message"]


async def test_before_the_first_lists_nothing_is_called_unknown(bench: Bench) -> None:
    bench.gateway.lifecycle._unsynced.add("pods")
    status, seen, headers = await post(bench, {"model": "gpt-5"})
    assert (status, seen["error"]["code"], headers["Retry-After"]) == (503, "gateway_starting", "1")


@pytest.mark.parametrize("is_announced", [True, False], ids=["by length", "by chunks"])
async def test_a_body_over_the_bound_is_refused(bench: Bench, is_announced: bool) -> None:  # noqa: FBT001
    async def chunks() -> Any:
        for _ in range(9):
            yield b"x" * 2**20

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", echo)
    data = b"x" * (8 * 2**20 + 1)
    headers = {"Host": "chat.team.svc"}
    with pytest.warns(ResourceWarning) if is_announced else nullcontext():
        async with bench.client.post(
            bench.url + COMPLETIONS, data=data if is_announced else chunks(), headers=headers
        ) as response:
            assert response.status == 413
            assert "8388608 bytes" in (await response.json())["error"]["message"]
    assert bench.value(ARRIVED, **CHAT) == 0


async def test_a_body_of_megabytes_within_the_bound_goes_through(bench: Bench) -> None:
    async def measure(request: web.Request) -> web.Response:
        return web.json_response({"size": len(await request.read())})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", measure)
    body = {"model": "team/chat", "prompt": "x" * (7 * 2**20)}
    with pytest.warns(ResourceWarning):  # of this test's own client
        status, seen, _ = await post(bench, body)
    assert status == 200
    assert seen["size"] > 7 * 2**20


async def test_compressed_bodies_and_answers_go_through_untouched(bench: Bench) -> None:
    async def answer(request: web.Request) -> web.Response:
        body = await request.read()  # the upstream's server unpacks it
        return web.Response(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", answer)
    packed, headers = gzip.compress(json.dumps(BODY).encode()), {"Content-Encoding": "gzip"}
    url = bench.url + COMPLETIONS
    async with bench.client.post(url, data=packed, headers=headers | {"Host": "chat.team.svc"}) as response:
        assert json.loads(await response.read()) == BODY
    async with bench.client.post(url, data=packed, headers=headers) as response:
        assert response.status == 415
        assert "send it uncompressed" in (await response.json())["error"]["message"]


async def test_openais_client_works_through_it(bench: Bench) -> None:
    def chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        document = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "chat"}
        return b"data: " + json.dumps(document | {"choices": [choice]}).encode() + b"\n\n"

    async def complete(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in (chunk({"content": "Once "}), chunk({"content": "more"}), chunk({}, "stop")):
            await response.write(piece)
        await response.write(b"data: [DONE]\n\n")
        return response

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", complete)
    async with openai.AsyncOpenAI(base_url=f"{bench.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model="chat", messages=BODY["messages"], stream=True)
        choices = [part.choices[0] async for part in stream]
        assert "".join(choice.delta.content or "" for choice in choices) == "Once more"
        assert choices[-1].finish_reason == "stop"
        assert [model.id async for model in client.models.list()] == []
        found = (await client.models.retrieve("chat")).to_dict()
        assert (found["owned_by"], found["root"]) == ("millrace", "chat")
        with pytest.raises(openai.NotFoundError, match="<namespace>/<name>"):
            await client.chat.completions.create(model="gpt", messages=BODY["messages"])


async def test_a_stream_broken_off_raises_in_openais_client(bench: Bench) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": hello\n\n")
        await asyncio.sleep(0)
        request.transport.close()
        return response

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", break_off)
    async with openai.AsyncOpenAI(base_url=f"{bench.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model="chat", messages=BODY["messages"], stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            [part async for part in stream]


@needs_ipv6
async def test_a_replica_is_reached_at_an_ipv6_address(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    port = listener.getsockname()[1]  # the machine has one such address, so 8000 may be somebody else's
    monkeypatch.setattr("millrace_gateway.front.upstream.PORT_HTTP", port)
    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", echo, "::1", listener)
    async with bench.client.post(bench.url + COMPLETIONS, json=BODY) as response:
        assert response.status == 200
        assert (await response.json())["headers"]["Host"] == f"[::1]:{port}"
