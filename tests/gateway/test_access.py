"""Clients with keys and limits, over the whole path: a real client, the gateway, and real upstreams."""

import asyncio
import base64
import hashlib
import json
import time
from typing import Any

import openai
import pytest
from aiohttp import web

from millrace_gateway.access.access_log import LoggedRequest, format_line
from millrace_gateway.access.fairness import replica_room
from millrace_gateway.access.fairness.replica_room import FIRST_REQUESTS
from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.ledger import AccountKey
from millrace_gateway.access.limits.reservation import Usage
from millrace_gateway.access.policy import read_default
from millrace_gateway.front import early_stream
from millrace_gateway.route.objects import ServiceKey
from millrace_runtime import contract
from millrace_runtime.gateway_token import TokenVerifier, find_public_key, generate_key
from testing.gateway_bench import Bench, make_pod, make_service, next_address
from testing.polling import wait_until_async

PATH = contract.PATH_CHAT_COMPLETIONS
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
PRIVATE = generate_key()
PUBLIC = find_public_key(PRIVATE)
KEYS = {"ada": "mr-ada", "bob": "mr-bob"}


def make_keys(namespace: str = "team", name: str = "keys", **fields: dict[str, Any]) -> dict[str, Any]:
    entries = {
        client: {"sha256": [hashlib.sha256(key.encode()).hexdigest()], **fields.get(client, {})}
        for client, key in KEYS.items()
    }
    data = {
        client: base64.b64encode(json.dumps(entry).encode()).decode() for client, entry in entries.items()
    }
    return {"metadata": {"namespace": namespace, "name": name}, "data": data}


def add_service(
    bench: Bench, *limits: dict[str, Any], name: str = "chat", mode: str = "APIKey", rests: bool = False
) -> None:
    service = make_service("team", name)
    if rests:
        service["spec"]["scaling"] = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 2}
    service["spec"]["access"] = {
        "authentication": {"mode": mode, "secretName": "keys"} if mode == "APIKey" else {"mode": mode},
        "rateLimits": list(limits),
    }
    bench.gateway.service_sinks[0].apply(service)


CHAT = ServiceKey("team", "chat")


class Replica:
    """An upstream that takes requests only with a token, and reports what each answer uses."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.verifier = TokenVerifier("team/chat", [PUBLIC])
        self.release = asyncio.Event()
        self.release.set()
        self.num_open = 0
        self.hangs = False
        self.status = 200
        """Of answers that are no streams."""
        self.num_more = 0
        """Pieces of 1 MiB in a stream."""
        self.early_use: str | None = None
        """What it reports before a whole answer begins."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get(contract.HEADER_GATEWAY_TOKEN, "")
        if not self.verifier.is_valid(token, time.time()):
            return web.Response(status=401, headers={contract.HEADER_GATEWAY_TOKEN: "refused"})
        if request.path == contract.PATH_LOAD:
            if self.hangs:
                await asyncio.Event().wait()
            return web.json_response(self.describe_load())
        self.seen.append(request)
        self.num_open += 1
        try:
            return await self.answer(request)
        finally:
            self.num_open -= 1

    def describe_load(self) -> dict[str, float]:
        running = min(1, self.num_open)
        return {"waiting": self.num_open - running, "running": running, "max_sequences": 1, "kv_usage": 0.5}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        headers = {contract.HEADER_LOAD: " ".join(map(str, self.describe_load().values()))}
        if not body.get("stream"):
            if self.early_use is not None:
                head = f"HTTP/1.1 102 Processing\r\n{contract.HEADER_USAGE}: {self.early_use}\r\n\r\n"
                request.transport.write(head.encode())
            await self.release.wait()
            usage = {contract.HEADER_USAGE: "5 1 7"}
            return web.json_response({"ok": 1}, status=self.status, headers=headers | usage)
        answer = web.StreamResponse(headers=headers | {"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await answer.write(contract.USAGE_EVENT + b"5 0 1\n\n")
        while self.num_more:
            await answer.write(b": " + b"x" * 2**20 + b"\n\n")
            self.num_more -= 1
        await self.release.wait()
        await answer.write(b"data: [DONE]\n\n")
        await answer.write(contract.USAGE_EVENT + b"5 0 20\n\n")
        return answer


async def start(bench: Bench, *limits: dict[str, Any], **fields: Any) -> Replica:
    add_service(bench, *limits, **fields)
    replica, _ = await add_replica(bench)
    learn_keys(bench)
    return replica


def learn_keys(bench: Bench) -> None:
    bench.gateway.tenancy.keys.apply(make_keys())
    bench.gateway.tenancy.signer.replace_keys({"data": {"k-1": base64.b64encode(PRIVATE).decode()}})


async def add_replica(bench: Bench) -> tuple[Replica, dict[str, Any]]:
    """Return another replica, and its pod."""
    replica, address = Replica(), next_address()
    uid = await bench.add_upstream("team", "chat", replica.handle, address, reports_load=True)
    pod = make_pod("team", "chat", uid, address=address, served="chat")
    pod["spec"]["containers"][0]["args"] += ["--gateway-key", PUBLIC, "--service", "team/chat"]
    bench.gateway.catalogue.apply_replica(pod)
    return replica, pod


async def ask(
    bench: Bench, key: str | None = "mr-ada", body: Any = BODY, *, path: str = PATH, **headers: str
) -> tuple[int, Any, Any]:
    sent = headers | ({"Authorization": f"Bearer {key}"} if key else {})
    async with bench.client.post(bench.url + path, json=body, headers=sent) as answer:
        text = await answer.text()
        return answer.status, text, answer.headers


async def test_a_replica_gets_a_token_and_the_clients_salt_and_no_key(bench: Bench) -> None:
    replica = await start(bench)
    assert (await ask(bench))[0] == 200
    assert (await ask(bench, None, **{"x-api-key": "mr-bob", contract.HEADER_CACHE_SALT: "forged"}))[0] == 200
    ada, bob = (request.headers[contract.HEADER_CACHE_SALT] for request in replica.seen)
    assert len({ada, bob, "forged"}) == 3
    for request in replica.seen:
        assert not {"Authorization", "X-Api-Key"} & set(request.headers)
        assert request.headers[contract.HEADER_REPORT] == contract.REPORT_USAGE


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        (None, 401, "missing_api_key"),
        ("mr-eve", 401, "invalid_api_key"),
        ("mr-ada", 403, "model_not_allowed"),
    ],
)
async def test_a_request_without_a_right_is_refused_before_any_replica(
    bench: Bench, key: str | None, status: int, code: str
) -> None:
    replica = await start(bench)
    bench.gateway.tenancy.keys.apply(make_keys(ada={"models": ["other"]}))
    found, text, _ = await ask(bench, key)
    assert (found, json.loads(text)["error"]["code"], replica.seen) == (status, code, [])


async def test_openais_client_reads_the_refusals(bench: Bench) -> None:
    await start(bench, {"per": "Key", "requestsPerMinute": 1})
    client = openai.AsyncOpenAI(base_url=f"{bench.url}/v1", api_key="mr-eve", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await client.chat.completions.create(**BODY)
    client = client.with_options(api_key="mr-ada")
    await client.chat.completions.create(**BODY)
    with pytest.raises(openai.RateLimitError) as refused:
        await client.chat.completions.create(**BODY)
    headers = refused.value.response.headers
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(headers["retry-after"]) <= 60
    await client.close()


async def test_what_was_used_counts_and_no_client_sees_the_report(bench: Bench) -> None:
    replica = await start(bench, {"per": "Key", "tokensPerMinute": 1000})
    _, _, headers = await ask(bench)
    assert contract.HEADER_USAGE not in headers
    assert contract.HEADER_LOAD not in headers
    _, text, headers = await ask(bench, body=BODY | {"stream": True})
    assert text == "data: 1\n\ndata: [DONE]\n\n"
    assert int(headers["x-ratelimit-remaining-tokens"]) > 900
    async with bench.client.get(f"{bench.url}/v1/usage", headers={"api-key": "mr-ada"}) as answer:
        (use,) = (await answer.json())["data"]
    assert use["client"] == "ada"
    assert (use["requests"], use["tokens"]) == (2, {"prompt": 10, "cached": 1, "completion": 27})
    assert b'client="other"' in bench.gateway.metrics.render()
    async with bench.client.get(f"{bench.url}/v1/usage", headers={"api-key": "mr-eve"}) as answer:
        assert answer.status == 401
    assert len(replica.seen) == 2


class Liar(Replica):
    """A tenant's own program in place of a replica: it reports more than anybody can use."""

    async def answer(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        return web.json_response({"ok": 1}, headers={contract.HEADER_USAGE: "999999999 0 999999999"})


async def test_a_replica_that_lies_spends_its_own_services_limit_alone(bench: Bench) -> None:
    limit = {"per": "Key", "tokensPerMinute": 1000}
    await start(bench, limit)
    add_service(bench, limit, name="other")
    liar, address = Liar(), next_address()
    liar.verifier = TokenVerifier("team/other", [PUBLIC])
    uid = await bench.add_upstream("team", "other", liar.handle, address, reports_load=True)
    pod = make_pod("team", "other", uid, address=address, served="other")
    pod["spec"]["containers"][0]["args"] += ["--gateway-key", PUBLIC, "--service", "team/other"]
    bench.gateway.catalogue.apply_replica(pod)
    other = BODY | {"model": "other"}
    assert [(await ask(bench, body=other))[0] for _ in range(2)] == [200, 429]
    assert [(await ask(bench))[0] for _ in range(3)] == [200] * 3
    assert (await ask(bench, "mr-bob", other))[0] == 200, "another client of the liar's has its own limit"


async def test_the_access_log_has_each_request_and_no_prompt_no_key_and_no_query(bench: Bench) -> None:
    replica = await start(bench)
    logged: list[LoggedRequest] = []
    bench.gateway.tenancy.guard._log = logged.append
    body = BODY | {"messages": [{"role": "user", "content": "PRIVATE"}], "user": "PRIVATE"}
    await ask(bench, body=body, path=f"{PATH}?token=PRIVATE")
    await ask(bench, body=body | {"stream": True})
    await ask(bench, "mr-PRIVATE", body=body)
    replica.release.clear()
    headers, cut = {"Authorization": "Bearer mr-bob"}, body | {"stream": True}
    async with bench.client.post(bench.url + PATH, json=cut, headers=headers) as answer:
        await answer.content.readany()
        answer.close()
    await bench.until(lambda: len(logged) == 4)
    lines = [json.loads(format_line(one)) for one in logged]
    assert [(line["client"], line["outcome"], line["status"]) for line in lines] == [
        ("team/keys/ada", "completed", 200),
        ("team/keys/ada", "completed", 200),
        ("", "refused", 401),
        ("team/keys/bob", "client_left", 200),
    ]
    assert [line.get("completion_tokens") for line in lines] == [7, 20, None, 1]
    assert not {"PRIVATE", "mr-ada", "mr-bob"} & {value for line in lines for value in line.values()}
    assert "PRIVATE" not in repr(logged)


async def test_a_cut_stream_is_charged_for_what_its_replica_told(bench: Bench) -> None:
    replica = await start(bench, {"per": "Key", "tokensPerMinute": 100_000, "concurrency": 1})
    replica.release.clear()
    headers = {"Authorization": "Bearer mr-ada"}
    async with bench.client.post(
        bench.url + PATH, json=BODY | {"stream": True, "max_tokens": 50_000}, headers=headers
    ) as answer:
        assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
        assert (await ask(bench))[0] == 429  # one at once
        answer.close()
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)
    replica.release.set()
    assert int((await ask(bench))[2]["x-ratelimit-remaining-tokens"]) > 99_900


@pytest.mark.parametrize(
    ("early_use", "prompt", "completion"), [("5 1 9000", 5, 9000), (None, 16, 256)], ids=["told", "untold"]
)
async def test_a_client_that_leaves_a_whole_answer_pays_and_its_use_counts(
    bench: Bench, early_use: str | None, prompt: int, completion: int
) -> None:
    """Without a bound of its own the request reserves 256 tokens and its bytes / 4, whatever it computes."""
    replica = await start(bench, {"per": "Key", "tokensPerMinute": 100_000})
    replica.release.clear()
    replica.early_use = early_use
    account = bench.gateway.tenancy.guard._limiter.ledger.open(
        AccountKey(CHAT, Tenant("team", "keys", "ada"))
    )
    asked = asyncio.create_task(ask(bench, body={"model": "chat", "messages": BODY["messages"]}))
    await bench.until(lambda: replica.seen and account.tokens.spent >= prompt + completion)
    asked.cancel()
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)
    assert account.tokens.spent == prompt + completion
    async with bench.client.get(f"{bench.url}/v1/usage", headers={"api-key": "mr-ada"}) as answer:
        (use,) = (await answer.json())["data"]
    cached = 1 if early_use else 0
    assert use["tokens"] == {"prompt": prompt, "cached": cached, "completion": completion}


async def die(request: web.Request) -> web.Response:
    await request.read()
    request.transport.abort()
    return web.Response()


async def fail(_: web.Request) -> web.Response:
    return web.Response(status=500)


async def tell_early_alone(request: web.Request) -> web.Response:
    request.transport.write(f"HTTP/1.1 102 Processing\r\n{contract.HEADER_USAGE}: 5 1 9000\r\n\r\n".encode())
    return web.json_response({})


@pytest.mark.parametrize(
    ("answer", "status", "usage"),
    [(die, 502, None), (fail, 500, None), (tell_early_alone, 200, Usage(5, 1, 9000))],
)
async def test_a_failure_without_a_report_counts_nothing_and_an_early_report_stays(
    bench: Bench, answer: Any, status: int, usage: Usage | None
) -> None:
    replica = await start(bench)
    replica.answer = answer
    logged: list[LoggedRequest] = []
    bench.gateway.tenancy.guard._log = logged.append
    assert (await ask(bench, body=BODY | {"max_tokens": 131_072}))[0] == status
    await bench.until(lambda: logged)
    use = bench.gateway.tenancy.guard._book.total
    assert (use.requests, logged[0].usage) == (1, usage)
    assert (use.prompt, use.cached, use.completion) == (usage or (0, 0, 0))


@pytest.mark.parametrize(
    ("limit", "num_tokens"), [("tokensPerMinute", 1000), ("requestsPerMinute", 128 * 2**20 + 27)]
)
async def test_who_leaves_an_answer_without_a_bound_pays_what_one_request_may_use(
    bench: Bench, limit: str, num_tokens: int
) -> None:
    replica = await start(bench, {"per": "Key", limit: 1000})
    replica.release.clear()
    logged: list[LoggedRequest] = []
    bench.gateway.tenancy.guard._log = logged.append
    asked = asyncio.create_task(ask(bench, body=BODY | {"n": 2**31, "max_tokens": 2**31}))
    await bench.until(lambda: replica.seen)
    asked.cancel()
    await bench.until(lambda: logged)
    use = bench.gateway.tenancy.guard._book.total
    assert logged[0].usage == (use.prompt, use.cached, use.completion)
    assert use.prompt + use.completion == num_tokens


async def test_a_client_that_does_not_read_pays_for_what_may_have_been_computed(bench: Bench) -> None:
    replica = await start(bench, {"per": "Key", "tokensPerMinute": 100_000})
    replica.num_more = 64
    body = BODY | {"stream": True, "max_tokens": 50_000}
    async with bench.client.post(
        bench.url + PATH, json=body, headers={"Authorization": "Bearer mr-ada"}
    ) as answer:
        left = 65
        while replica.num_more < left:  # until the client's slowness has come to the replica
            left = replica.num_more
            await asyncio.sleep(0.05)
        assert left > 0
        answer.close()
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)
    assert int((await ask(bench))[2]["x-ratelimit-remaining-tokens"]) < 60_000  # a minute gives 100,000 back


async def test_limits_of_a_service_hold_without_keys(bench: Bench) -> None:
    await start(bench, {"per": "Service", "requestsPerMinute": 2}, mode="None")
    assert [(await ask(bench, None))[0] for _ in range(3)] == [200, 200, 429]


async def test_services_that_share_a_name_do_not_share_their_keys(bench: Bench) -> None:
    replica = await start(bench)
    open_service = make_service("team", "open", served="chat", created="2026-02-01T00:00:00Z")
    bench.gateway.service_sinks[0].apply(open_service)
    await bench.add_upstream("team", "open", replica.handle, reports_load=True)
    assert (await ask(bench, None))[0] == 401
    for _ in range(4):
        assert (await ask(bench))[0] == 200


async def test_what_the_gateway_can_not_check_is_closed(bench: Bench) -> None:
    replica = await start(bench)
    bench.gateway.tenancy.signer.replace_keys(None)
    status, text, _ = await ask(bench)
    assert (status, json.loads(text)["error"]["code"]) == (503, "gateway_key_missing")
    bench.gateway.tenancy.keys.delete(make_keys())
    status, text, _ = await ask(bench)
    assert (status, json.loads(text)["error"]["code"]) == (503, "keys_unavailable")
    add_service(bench, mode="OIDC")
    assert (await ask(bench))[0] == 503
    assert not replica.seen


DEFAULT = read_default('{"authentication": {"mode": "APIKey", "secretName": "platform"}}', "millrace-system")


@pytest.mark.parametrize("bench", [{"default_access": DEFAULT}], indirect=True)
async def test_the_platforms_keys_open_services_that_have_none(bench: Bench) -> None:
    await start(bench)
    bench.gateway.service_sinks[0].apply(make_service("team", "chat"))
    bench.gateway.tenancy.keys.apply(make_keys("team", "platform"))  # a tenant's own Secret of that name
    assert (await ask(bench))[0] == 503
    bench.gateway.tenancy.keys.apply(make_keys("millrace-system", "platform"))
    assert (await ask(bench))[0] == 200
    assert (await ask(bench, "mr-eve"))[0] == 401


async def test_one_clients_flood_waits_behind_anothers_request(bench: Bench) -> None:
    replica = await start(bench)
    await ask(bench)  # tells the load: one at once
    replica.release.clear()
    flood = [asyncio.create_task(ask(bench, "mr-ada", BODY | {"max_tokens": 4000})) for _ in range(12)]
    await bench.until(lambda: bench.gateway.lifecycle.num_in_flight == 12)
    other = asyncio.create_task(ask(bench, "mr-bob"))
    await bench.until(lambda: bench.gateway.lifecycle.num_in_flight == 13)
    num_before = len(replica.seen)
    assert num_before < 10
    replica.release.set()
    assert (await other)[0] == 200
    assert {(await task)[0] for task in flood} == {200}
    order = [request.headers[contract.HEADER_CACHE_SALT] for request in replica.seen]
    (place,) = (at for at, salt in enumerate(order) if order.count(salt) == 1)
    assert place < num_before + 8


async def test_a_flood_that_waits_for_its_turns_counts_as_load(bench: Bench) -> None:
    """The operator hears of it, and the replica's latencies begin with the wait."""
    replica = await start(bench)
    await ask(bench)  # tells the load: one at once
    replica.release.clear()
    flood = [asyncio.create_task(ask(bench)) for _ in range(12)]
    await bench.until(lambda: bench.gateway.activity.count_open() == {"team/chat": 12})
    count_waiting = bench.gateway.tenancy.turnstiles.count_waiting
    await bench.until(lambda: count_waiting() == {CHAT: 13 - len(replica.seen)})
    num_before = len(replica.seen)
    labels = {"namespace": "team", "service": "chat"}
    assert bench.value(contract.METRIC_GATEWAY_ARRIVALS, **labels) == 13
    assert bench.value("millrace_gateway_requests_waiting", **labels) == 13 - num_before
    await asyncio.sleep(0.05)
    replica.release.set()
    assert {(await task)[0] for task in flood} == {200}
    waited = [float(request.headers.get(contract.HEADER_WAITED, 0)) for request in replica.seen]
    assert max(waited[:num_before]) < min(waited[num_before:])
    assert min(waited[num_before:]) >= 0.05
    assert count_waiting() == {}


async def test_a_replica_that_failed_once_keeps_its_queue_while_there_is_no_other(bench: Bench) -> None:
    replica = await start(bench)
    await ask(bench)  # tells the load: one at once
    replica.release.clear()
    flood = [asyncio.create_task(ask(bench)) for _ in range(12)]
    await bench.until(lambda: len(replica.seen) > 1 and bench.gateway.tenancy.turnstiles.count_waiting())
    waiting = bench.gateway.tenancy.turnstiles.count_waiting()
    [known] = bench.gateway.catalogue.list_replicas(CHAT)
    bench.gateway.balancer.note_failure(known, time.monotonic())
    bench.gateway.tenancy.refresh()
    assert bench.gateway.tenancy.turnstiles.count_waiting() == waiting
    replica.release.set()
    assert {(await task)[0] for task in flood} == {200}


async def test_one_that_hangs_gets_nothing_more_while_there_is_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_room, "STALE_SECONDS", 0.2)
    hung = await start(bench)
    hung.release.clear()
    hung.hangs = True
    stuck = asyncio.create_task(ask(bench))
    await bench.until(lambda: len(hung.seen) == 1)
    other, _ = await add_replica(bench)
    [turnstile] = bench.gateway.tenancy.turnstiles._turnstiles.values()
    await bench.until(lambda: turnstile.window.list_silent(time.monotonic()))
    other.release.clear()  # it has more requests than the hung one
    asked = [asyncio.create_task(ask(bench, "mr-bob")) for _ in range(2)]
    await bench.until(lambda: len(other.seen) == len(asked))
    other.release.set()
    assert {(await task)[0] for task in asked} == {200}
    assert len(hung.seen) == 1
    other.verifier = TokenVerifier("team/other", [PUBLIC])  # it refuses, so the hung one is better than none
    last = asyncio.create_task(ask(bench, "mr-bob"))
    await bench.until(lambda: len(hung.seen) == 2)
    hung.release.set()
    assert ((await stuck)[0], (await last)[0]) == (200, 200)


async def test_those_whose_last_replica_goes_take_turns_again_at_the_next_one(bench: Bench) -> None:
    add_service(bench, rests=True)
    learn_keys(bench)
    first, pod = await add_replica(bench)
    await ask(bench)
    first.release.clear()
    flood = [asyncio.create_task(ask(bench)) for _ in range(3 * FIRST_REQUESTS)]
    turnstiles = bench.gateway.tenancy.turnstiles
    await bench.until(lambda: turnstiles.count_waiting() == {CHAT: len(flood) + 1 - len(first.seen)})
    num_waiting = turnstiles.count_waiting()[CHAT]
    bench.gateway.catalogue.delete_replica(pod)
    bench.gateway.tenancy.refresh()
    first.release.set()
    assert turnstiles.count_waiting() == {CHAT: num_waiting}
    second, _ = await add_replica(bench)
    second.release.clear()
    await bench.until(lambda: turnstiles.count_waiting() == {CHAT: num_waiting - FIRST_REQUESTS})
    second.release.set()
    assert {(await task)[0] for task in flood} == {200}


async def test_a_moment_without_a_ready_replica_refuses_none_that_waits(bench: Bench) -> None:
    add_service(bench)
    learn_keys(bench)
    replica, pod = await add_replica(bench)
    await ask(bench)  # tells the load: one at once
    replica.release.clear()
    flood = [asyncio.create_task(ask(bench)) for _ in range(12)]
    await bench.until(lambda: bool(bench.gateway.tenancy.turnstiles.count_waiting()))
    for is_ready in ("False", "True"):
        status = pod["status"] | {"conditions": [{"type": "Ready", "status": is_ready}]}
        bench.gateway.catalogue.apply_replica(pod | {"status": status})
        bench.gateway.tenancy.refresh()
        await asyncio.sleep(0)
    replica.release.set()
    assert {(await task)[0] for task in flood} == {200}


async def test_a_gateway_that_ends_refuses_those_who_wait_for_their_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait until the grace period cuts it; another gateway has a place for it."""
    monkeypatch.setattr(early_stream, "BEGIN_SECONDS", 0.02)
    replica = await start(bench)
    await ask(bench)  # tells the load: one at once
    replica.release.clear()
    flood = [asyncio.create_task(ask(bench)) for _ in range(12)]
    turnstiles = bench.gateway.tenancy.turnstiles
    count_waiting = turnstiles.count_waiting
    await bench.until(lambda: bool(count_waiting()))
    sent, body = {"Authorization": "Bearer mr-bob"}, BODY | {"stream": True, "max_tokens": 32_768}
    async with bench.client.post(bench.url + PATH, json=body, headers=sent) as stream:
        assert await stream.content.readline() == b": waiting\n"
        assert max(ticket.tokens for ticket in turnstiles._arrivals) < 300  # its bound counts as no more
        draining = asyncio.create_task(bench.gateway.drain(bench.sites))
        await bench.until(lambda: not count_waiting())
        assert b"gateway_draining" in await stream.content.read()
    replica.release.set()
    answers = {(status, headers.get("Retry-After")) for status, _, headers in [await one for one in flood]}
    assert answers == {(200, None), (503, "1")}
    await draining


async def test_who_only_counts_tokens_waits_for_no_turn(bench: Bench) -> None:
    replica = await start(bench)
    await ask(bench)  # tells the load: one at once
    replica.release.clear()
    flood = [asyncio.create_task(ask(bench)) for _ in range(12)]
    await bench.until(lambda: bool(bench.gateway.tenancy.turnstiles.count_waiting()))
    num_before = len(replica.seen)
    counting = asyncio.create_task(ask(bench, path=contract.PATH_TOKENIZE))
    await bench.until(lambda: len(replica.seen) == num_before + 1)
    replica.release.set()
    assert {(await task)[0] for task in (counting, *flood)} == {200}


async def test_a_flood_that_only_counts_tokens_waits_in_the_gateway_in_turns(
    bench: Bench,
) -> None:
    """All of it was in the replica at once, before the chats of others."""
    replica = await start(bench)
    await ask(bench)
    replica.release.clear()
    before = len(replica.seen)
    flood = [asyncio.create_task(ask(bench, path=contract.PATH_TOKENIZE)) for _ in range(40)]
    await bench.until(lambda: bool(bench.gateway.tenancy.counting.count_waiting()))
    assert bench.gateway.tenancy.turnstiles.count_waiting() == {}  # replicas have nothing to compute for it
    other = asyncio.create_task(ask(bench, "mr-bob", path=contract.PATH_TOKENIZE))
    chat = asyncio.create_task(ask(bench, "mr-bob"))
    await bench.until(lambda: bench.gateway.tenancy.counting.count_waiting() == {CHAT: 41 - FIRST_REQUESTS})
    await bench.until(lambda: len(replica.seen) == before + FIRST_REQUESTS + 1)
    replica.release.set()
    assert {(await task)[0] for task in (other, chat, *flood)} == {200}
    order = [request.headers[contract.HEADER_CACHE_SALT] for request in replica.seen[before:]]
    places = [at for at, salt in enumerate(order) if salt != order[0]]
    assert max(places) <= FIRST_REQUESTS + 2


async def test_who_reads_the_answers_of_its_counting_slowly_keeps_no_turn_of_others(bench: Bench) -> None:
    """A byte a minute, at four answers, and nobody else counted tokens at that replica."""
    replica = await start(bench)
    replica.num_more = 1000
    slow = [
        await bench.client.post(
            bench.url + contract.PATH_DETOKENIZE,
            json=BODY | {"stream": True},
            headers={"Authorization": "Bearer mr-ada"},
        )
        for _ in range(FIRST_REQUESTS)
    ]
    assert [answer.status for answer in slow] == [200] * FIRST_REQUESTS
    async with asyncio.timeout(5):
        assert (await ask(bench, "mr-bob", path=contract.PATH_TOKENIZE))[0] == 200
    assert bench.gateway.tenancy.counting._turnstiles[CHAT].num_inside == 0
    for answer in slow:
        answer.close()


async def test_what_only_counts_tokens_is_one_sequence_whatever_its_body_says(bench: Bench) -> None:
    """Else the replica would have ended so many that the gateway still counts, and have room for more."""
    replica = await start(bench)
    replica.release.clear()
    asked = asyncio.create_task(ask(bench, body=BODY | {"n": 100}, path=contract.PATH_TOKENIZE))
    await bench.until(lambda: len(replica.seen) == 1)
    [known] = bench.gateway.catalogue.list_replicas(CHAT)
    assert bench.gateway.balancer.count_sequences(known) == 1
    replica.release.set()
    assert (await asked)[0] == 200


async def test_the_gateway_knows_whose_requests_fail(bench: Bench) -> None:
    """One client's errors may be its own."""
    replica = await start(bench)
    suspects = bench.gateway.balancer._suspects._first
    for status, expected in ((500, ["ada"]), (200, [])):
        replica.status = status
        assert (await ask(bench))[0] == status
        assert (await ask(bench, path=contract.PATH_TOKENIZE))[0] == status
        assert [tenant.entry for _, tenant in suspects] == expected  # type: ignore[attr-defined, misc]


async def test_those_who_wait_for_a_replica_take_turns_at_the_first_one(bench: Bench) -> None:
    add_service(bench, rests=True)
    learn_keys(bench)
    flood = [asyncio.create_task(ask(bench)) for _ in range(3 * FIRST_REQUESTS)]
    await bench.until(lambda: bench.gateway.holder.num_held == len(flood))
    other = asyncio.create_task(ask(bench, "mr-bob"))
    await bench.until(lambda: bench.gateway.holder.num_held == len(flood) + 1)
    replica, _ = await add_replica(bench)
    replica.release.clear()
    bench.gateway.replica_sinks[0]._on_news([CHAT])
    await bench.until(lambda: bool(bench.gateway.tenancy.turnstiles.count_waiting()))
    await bench.until(lambda: len(replica.seen) == FIRST_REQUESTS)
    replica.release.set()
    assert {(await task)[0] for task in (other, *flood)} == {200}
    order = [request.headers[contract.HEADER_CACHE_SALT] for request in replica.seen]
    (place,) = (at for at, salt in enumerate(order) if order.count(salt) == 1)
    assert place < FIRST_REQUESTS + 8


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_new_replica_takes_whom_one_that_hangs_lets_wait(bench: Bench, *, is_ready: bool) -> None:
    """It has reported nothing yet, and the other one keeps what it has, Ready or not."""
    hung = await start(bench)
    hung.release.clear()
    stuck = [asyncio.create_task(ask(bench)) for _ in range(20)]
    turnstiles = bench.gateway.tenancy.turnstiles._turnstiles
    await wait_until_async("a queue", lambda: CHAT in turnstiles and len(turnstiles[CHAT].queue))
    if not is_ready:
        [one] = bench.gateway.catalogue.list_replicas(CHAT)
        bench.gateway.catalogue.apply_replica(
            make_pod("team", "chat", one.uid, address=one.address, ready=False)
        )
    other, _ = await add_replica(bench)
    async with asyncio.timeout(10):
        assert (await ask(bench, "mr-bob"))[0] == 200
    assert other.seen
    hung.release.set()
    assert {status for status, _, _ in await asyncio.gather(*stuck)} == {200}


async def test_a_websocket_escapes_no_key_no_limit_and_no_turn(bench: Bench) -> None:
    await start(bench)
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    for key, status in (("mr-eve", 401), ("mr-ada", 403)):
        sent = headers | {"Authorization": f"Bearer {key}"}
        async with bench.client.get(f"{bench.url}/v1/stream?model=chat", headers=sent) as answer:
            assert answer.status == status


async def test_a_request_that_ran_is_charged_though_its_client_left_before_the_answer(bench: Bench) -> None:
    replica = await start(bench, {"per": "Key", "requestsPerMinute": 3})
    replica.release.clear()
    asked = [asyncio.create_task(ask(bench)) for _ in range(3)]
    await bench.until(lambda: len(replica.seen) == 3)
    for task in asked:
        task.cancel()
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)
    assert (await ask(bench))[0] == 429


async def test_a_strangers_body_takes_no_memory_at_a_closed_services_host(bench: Bench) -> None:
    await start(bench)
    port = int(bench.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: chat.team.svc\r\nContent-Length: 8000000\r\n\r\n"
    writer.write(head.encode() + b"x" * 1000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    assert bench.value("millrace_gateway_body_bytes") == 0
    writer.close()


async def test_a_replica_that_refuses_the_token_is_not_the_clients_fault(bench: Bench) -> None:
    replica = await start(bench, {"per": "Key", "requestsPerMinute": 2})
    replica.verifier = TokenVerifier("team/other", [PUBLIC])
    for _ in range(3):  # nothing is charged
        assert (await ask(bench))[0] == 503
    assert bench.value("millrace_gateway_retries_total", cause="token") == 3


async def test_a_service_made_anew_has_new_turns(bench: Bench) -> None:
    replica = await start(bench)
    replica.release.clear()
    asked = [asyncio.create_task(ask(bench, body=BODY | {"stream": True})) for _ in range(3)]
    await bench.until(lambda: len(replica.seen) == 3)
    bench.remove_services()
    add_service(bench)
    replica.release.set()
    assert {(await task)[0] for task in asked} == {200}
    assert (await ask(bench))[0] == 200
    turnstiles = bench.gateway.tenancy.turnstiles
    assert [one.num_inside for one in turnstiles._turnstiles.values()] == [0]


@pytest.mark.parametrize("is_counted", [False, True])
async def test_a_body_that_ends_after_its_services_end_leaves_nothing(
    bench: Bench, *, is_counted: bool
) -> None:
    await start(bench)
    body = json.dumps(BODY).encode()
    path = contract.PATH_TOKENIZE if is_counted else PATH
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: chat.team.svc",
        "Api-Key: mr-ada",
        f"Content-Length: {len(body)}",
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]))
    writer.write("\r\n".join([*lines, "\r\n"]).encode() + body[:9])
    await bench.until(lambda: bench.gateway.bodies.num_bytes)
    bench.remove_services()
    writer.write(body[9:])
    assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
    tenancy = bench.gateway.tenancy
    assert (tenancy.turnstiles._turnstiles, tenancy.counting._turnstiles) == ({}, {})
    assert tenancy.guard._policies == {}
    writer.close()
