"""A tenant that writes whatever it can reaches no other tenant's pods, and learns nothing of its services.

`shop` is an honest tenant with the service `chat`, whose model is `llama`; its service `gone` is deleted. The
hostile tenant has the namespace `ai`. `models.ai` is the platform's public host, and `prod` its name for
shop/chat.
"""

import asyncio
import base64
import hashlib
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from millrace_gateway.route.objects import ServiceKey
from millrace_runtime.contract import (
    HEADER_CACHE_SALT,
    HEADER_GATEWAY_TOKEN,
    HEADER_REPORT,
    HEADER_USAGE,
    HEADER_WAITED,
)
from testing.gateway_bench import make_service

PLATFORM = {
    "short_names": {"prod": ServiceKey("shop", "chat")},
    "public_hosts": frozenset({"models.ai", "gateway"}),
}
SECRETS = ("shop", "chat", "llama", "prod", "quota")
"""Of the honest tenant: words that no answer may have unless its request had them."""
CLAIMS = (
    *("llama", "prod", "chat", "gone", "shop/chat", "shop/gone", "shop/llama", "chat.shop.svc", "models.ai"),
    *("", "/", "shop/", "../shop/chat", "LLAMA", "llama ", 'llama"} 1', "llama\n", "x" * 5000),
)
NAMES = ("models", "chat", "gone", "shop", "gateway", "svc")
HONEST = (
    ("chat.shop.svc", "llama"),
    ("chat.shop.svc.cluster.local:80", "anything"),
    ("gateway", "shop/chat"),
    ("gateway", "prod"),
    ("models.ai", "prod"),
    ("models.ai", "shop/chat"),
    ("gone.shop.svc", "gone"),
    ("gone.shop", "gone"),
    ("gateway", "shop/gone"),
    ("gateway", "llama"),
    ("chat.ai", "llama"),
)
"""Hosts and models of the honest tenant's clients, also those of its deleted service."""
LIES: tuple[dict[str, str], ...] = (
    {
        "X-Forwarded-Host": "chat.shop.svc",
        "Forwarded": "host=chat.shop.svc",
        "X-Original-Host": "chat.shop.svc",
    },
    {"X-Millrace-Draining": "true", "X-Millrace-Service": "shop/chat", "X-Millrace-Namespace": "shop"},
    {HEADER_CACHE_SALT: "shop/chat", HEADER_CACHE_SALT.lower(): "", "Connection": HEADER_CACHE_SALT},
    {"Authorization": "Bearer stolen", "Cookie": "session=1", "Connection": "Host, X-Request-Id"},
    {HEADER_GATEWAY_TOKEN: "forged", HEADER_WAITED: "999", HEADER_REPORT: "usage", HEADER_USAGE: "9 0 9"},
    {"X-HTTP-Method-Override": "GET", "X-Original-URL": "/metrics", "X-Rewrite-URL": "/loads"},
)
PROBES = (
    *("/v1/models", "/v1/models/none", "/v1/models/ai/none", "/v1/models?namespace=ai", "/v1/none", "/"),
    *(
        "/metrics",
        "/loads",
        "/v1/../metrics",
        "/v1/%2e%2e/loads",
        "//metrics",
        "/v1//models",
        "/livez",
        "/readyz",
    ),
)

HASH = hashlib.sha256(b"mr-shop").hexdigest()
"""Of the honest tenant's key, as its Secret has it."""
CREDENTIALS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": "Bearer mr-ai"},
    {"Api-Key": "mr-ai", "Connection": "api-key, host"},
    {"Authorization": f"Bearer {HASH}"},
    {"X-Api-Key": "*"},
    {"Authorization": "Bearer mr-ai", "X-Api-Key": HASH},
    *({"X-Api-Key": "mr-ai"} | lies for lies in LIES),
)
TRICKED_HOSTS = (
    *("chat.shop.svc", "chat.shop.svc.", "CHAT.shop.SVC:80", "chat.shop", "chat", "gateway", "models.ai", ""),
    *(
        "models.ai.svc",
        "chat.shop.svc,models.ai.svc",
        "models.ai.svc@chat.shop.svc",
        "models.ai.svc/chat.shop",
    ),
)
TRICKED_PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/messages", "/tokenize", "/v1/none", "//v1/completions"),
    *("/v1/../v1/completions", "/v1/models/../completions", "/v1/%63ompletions", "/v1/completions/", "/v1/."),
    *("/v1/completions?model=own", f"/v1/completions?api-key={HASH}", "/v1/stream?model=shop/chat"),
)
ENDS = "Host: models.ai.svc\r\n", "Api-Key: mr-ai\r\nConnection: close\r\nContent-Length: 19\r\n\r\n"
TRICKED_HEADS = (
    "POST http://chat.shop.svc/v1/completions HTTP/1.1\r\n{}{}",
    "POST chat.shop.svc/v1/completions HTTP/1.1\r\n{}{}",
    "POST /v1/completions HTTP/1.1\r\nHost: chat.shop.svc\r\n{}{}",
    "POST /v1/completions HTTP/1.1\r\n{} Host: chat.shop.svc\r\n{}",
    "POST /v1/completions HTTP/1.1\r\n{}Host : chat.shop.svc\r\n{}",
    "POST /v1/completions HTTP/1.1\r\n{}:authority: chat.shop.svc\r\n{}",
    "POST /v1/completions HTTP/1.0\r\nHost: chat.shop.svc\r\nX: {}{}",
)


def record(seen: list[dict[str, str]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return web.json_response({})

    return handle


@pytest.fixture
async def seen(bench: Any) -> dict[str, list[dict[str, str]]]:
    """The heads of the requests that each tenant's pod gets."""
    found: dict[str, list[dict[str, str]]] = {"shop": [], "ai": []}
    quota = {"status": "False", "reason": "PodsRefused", "message": "pods of shop: quota at registry.shop"}
    bench.add_service("shop", "chat", served="llama", ready=quota)
    await bench.add_upstream("shop", "chat", record(found["shop"]))
    bench.add_service("ai", "models", served="own")
    await bench.add_upstream("ai", "models", record(found["ai"]))
    return found


@pytest.fixture
async def closed(bench: Any, seen: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same, with a key of each tenant. The hostile one's says what its Secret can say."""
    for namespace, name, served in (("shop", "chat", "llama"), ("ai", "models", "own")):
        service = make_service(namespace, name, served=served)
        service["spec"]["access"] = {"authentication": {"mode": "APIKey", "secretName": "keys"}}
        bench.gateway.service_sinks[0].apply(service)
        entry: dict[str, Any] = {"sha256": [hashlib.sha256(f"mr-{namespace}".encode()).hexdigest()]}
        if namespace == "ai":
            entry["models"] = ["models", "shop/chat", "chat", "*", "shop/*", "../shop/chat"]
        data = {namespace: base64.b64encode(json.dumps(entry).encode()).decode()}
        bench.gateway.tenancy.keys.apply({"metadata": {"namespace": namespace, "name": "keys"}, "data": data})
    return seen


async def ask(bench: Any, host: str, model: str, **headers: str) -> tuple[int, str]:
    url, body = f"{bench.url}/v1/completions", json.dumps({"model": model}).encode()
    async with bench.client.post(url, data=body, headers={"Host": host, **headers}) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("bench", [PLATFORM], indirect=True)
async def test_no_name_that_it_takes_gets_others_requests(bench: Any, seen: dict[str, list[Any]]) -> None:
    address = bench.gateway.catalogue.ready_replicas(bench.gateway.catalogue.find_model("own"))[0].address
    for name in NAMES:
        bench.add_pod("ai", name, f"pod-{name}", address)
    for name in ("shop/chat", "chat.shop", "shop"):  # what a label of its pods may say
        bench.add_pod("ai", name, f"liar-{name}", address)
    for number, claim in enumerate(CLAIMS):
        bench.add_service("ai", NAMES[number % len(NAMES)], served=claim, created="2020-01-01T00:00:00Z")
        for host, model in HONEST:
            await ask(bench, host, model)
    for name in NAMES:  # all of them at once, and each its own namesake
        bench.add_service("ai", name)
    for host, model in HONEST:
        await ask(bench, host, model)
    assert seen["ai"] == []
    assert len(seen["shop"]) >= 6 * (len(CLAIMS) + 1)
    bench.gateway.catalogue.check_integrity()


@pytest.mark.parametrize("bench", [PLATFORM], indirect=True)
async def test_at_its_own_address_it_reaches_its_own_pods_alone(
    bench: Any, seen: dict[str, list[Any]]
) -> None:
    for host, model, lies in itertools.product(
        ("models.ai.svc", "models.ai.svc.cluster.local"), ("llama", "prod", "shop/chat"), LIES
    ):
        assert (await ask(bench, host, model, **lies))[0] == 200
    for lies in LIES:
        assert (await ask(bench, "models.ai.svc.", "own", **lies))[0] == 200
        for host in ("none.ai.svc", "elsewhere.example"):
            assert (await ask(bench, host, "none", **lies))[0] == 404
    assert (seen["shop"], len(seen["ai"])) == ([], 7 * len(LIES))
    sent = {name.lower() for head in seen["ai"] for name in head}
    assert sent <= {"host", "accept", "accept-encoding", "content-length", "content-type", "user-agent"}


@pytest.mark.parametrize("bench", [PLATFORM], indirect=True)
async def test_no_answer_tells_of_others(bench: Any, seen: dict[str, list[Any]]) -> None:
    bench.add_service("ai", "asleep", ready={"status": "False", "reason": "NotReady", "message": "x"})
    texts = [
        (await ask(bench, host, model))[1]
        for host in ("models.ai.svc", "asleep.ai.svc", "none.ai.svc", "gateway", "none.ai")
        for model in ("own", "none", "ai/none", "ai/asleep", "none/none", "", "own\n")
    ]
    for path, host in itertools.product(PROBES, ("models.ai.svc", "none.ai.svc", "gateway", "none.ai")):
        async with bench.client.get(URL(bench.url + path, encoded=True), headers={"Host": host}) as answer:
            texts.append(f"{await answer.text()} {dict(answer.headers)}")
    for text in texts:
        told = re.sub('"(id|root)": "prod"', "", text)  # what the platform has pinned is everybody's to know
        assert not [word for word in SECRETS if word in told], text
    assert seen["shop"] == []


@pytest.mark.parametrize("bench", [PLATFORM], indirect=True)
async def test_what_it_writes_makes_no_series(bench: Any, seen: dict[str, list[Any]]) -> None:
    before = count_series(bench)
    for host, model in itertools.product(("models.ai.svc", "gateway", 'x"},y="'), CLAIMS):
        await ask(bench, host, model, **LIES[1])
    bench.add_service("ai", "models", served='own",namespace="shop",service="chat')
    assert count_series(bench) == before
    assert bench.value("millrace_gateway_requests_received_total", namespace="shop", service="chat") == len(
        seen["shop"]
    )


@pytest.mark.parametrize("bench", [PLATFORM | {"body_memory_bytes": 300_000}], indirect=True)
async def test_bodies_that_never_end_leave_others_room(bench: Any, seen: dict[str, list[Any]]) -> None:
    """At its own address, and where nobody knows whose they are, both at once."""
    port, writers = int(bench.url.rpartition(":")[2]), []
    for host in ("models.ai.svc", "gateway") * 4:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 8000000\r\n\r\n"
        writer.write(head.encode() + b"x" * 60_000)
        writers.append(writer)
    refused = {"namespace": "ai", "service": "models", "outcome": "refused"}
    await bench.until(lambda: bench.value("millrace_gateway_requests_finished_total", **refused))
    await bench.until(lambda: bench.value("millrace_gateway_refusals_total", code="gateway_overloaded") > 2)
    assert (await ask(bench, "chat.shop.svc", "llama" + "x" * 30_000))[0] == 200
    assert len(seen["shop"]) == 1
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("bench", [PLATFORM], indirect=True)
async def test_no_path_host_or_header_opens_a_closed_service(
    bench: Any, closed: dict[str, list[Any]]
) -> None:
    models, methods = itertools.cycle(CLAIMS), itertools.cycle(("POST", "POST", "GET", "PUT", "OPTIONS"))
    for path, host, headers in itertools.product(TRICKED_PATHS, TRICKED_HOSTS, CREDENTIALS):
        url, data = URL(bench.url + path, encoded=True), json.dumps({"model": next(models)})
        sent = {"Host": host, **headers}
        async with bench.client.request(next(methods), url, data=data, headers=sent) as answer:
            assert answer.status < 500, (path, host, headers)
            text = await answer.text()
        assert "ai/keys" not in text
        assert "shop/keys" not in text
    for head in TRICKED_HEADS:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]))
        writer.write(head.format(*ENDS).encode() + b'{"model":"shop/chat"}'[:19])
        assert (await reader.readline())[9:10] in (b"2", b"4")
        writer.close()
    assert closed["shop"] == []
    assert closed["ai"], "its own service takes its key"


@pytest.mark.parametrize("bench", [PLATFORM], indirect=True)
async def test_a_key_leads_to_its_own_tenants_pods_alone(bench: Any, closed: dict[str, list[Any]]) -> None:
    """Also while the hostile tenant has open services with the honest one's names."""
    for name in NAMES[1:]:
        bench.add_service("ai", name, served="llama")
        await bench.add_upstream("ai", name, record(closed["ai"]))
    for host, model in HONEST:
        await ask(bench, host, model, **{"X-Api-Key": "mr-shop"})
    assert (closed["ai"], len(closed["shop"])) == ([], 6)
    for headers in ({"X-Api-Key": "mr-ai"}, {"X-Api-Key": HASH}):
        for host in TRICKED_HOSTS:
            async with bench.client.get(f"{bench.url}/v1/usage", headers={"Host": host} | headers) as answer:
                assert not [word for word in SECRETS if f'"{word}' in await answer.text()]


def count_series(bench: Any) -> int:
    lines = bench.gateway.metrics.render().decode().splitlines()
    return sum(line.startswith("millrace_gateway") for line in lines)
