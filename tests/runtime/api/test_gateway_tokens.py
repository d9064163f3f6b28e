"""A replica with a gateway's keys answers only requests with a token for its service."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import httpx
import pytest

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.contract import HEADER_GATEWAY_TOKEN, HEADER_LOAD, HEADER_WAITED, METRIC_TTFT, PATH_LOAD
from millrace_runtime.gateway_token import find_public_key, generate_key, sign_token
from tests.runtime.api.served import Served, serve

SERVICE = "team/chat"
OLD, NEW, OTHER = (generate_key() for _ in range(3))
BODY = {"prompt": "a", "max_tokens": 1}


@pytest.fixture
async def guarded(model_path: Path) -> AsyncIterator[Served]:
    keys = (find_public_key(OLD), find_public_key(NEW))
    async with serve(
        model_path, ApiSettings(served_name="tiny", service=SERVICE, gateway_keys=keys)
    ) as served:
        yield served


def with_tokens(*tokens: str) -> list[tuple[str, str]]:
    return [(HEADER_GATEWAY_TOKEN, token) for token in tokens]


async def test_a_token_of_either_key_opens_all_paths(guarded: Served) -> None:
    for key in (OLD, NEW):
        headers = with_tokens(sign_token(key, SERVICE, time.time()))
        assert (await guarded.client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
        assert (await guarded.client.get(PATH_LOAD, headers=headers)).json()["waiting"] == 0
        url = f"{guarded.client.base_url}".rstrip("/") + "/v1/stream"
        async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=headers) as socket:
            await socket.send_json({"id": "a", "request": BODY})
            while "done" not in await socket.receive_json(timeout=20):
                pass


async def test_a_request_without_one_valid_token_is_a_401_that_says_what_to_do(guarded: Served) -> None:
    now = time.time()
    good = sign_token(NEW, SERVICE, now)
    for tokens in (
        (),
        ("",),
        ("nonsense",),
        ("é" * 9,),
        (good, good),
        (good[:-3] + "AAA",),
        (sign_token(OTHER, SERVICE, now),),
        (sign_token(NEW, "team/chat2", now),),
        (sign_token(NEW, SERVICE, now - 120),),
        (sign_token(NEW, SERVICE, now + 120),),
    ):
        headers = httpx.Headers(with_tokens(*tokens), encoding="latin-1")
        for method, path in (("POST", "/v1/completions"), ("GET", PATH_LOAD), ("OPTIONS", "/v1/models")):
            answer = await guarded.client.request(method, path, headers=headers)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (401, "gateway_token_required")
            assert "call the address of the service" in error["message"]
            assert HEADER_LOAD not in answer.headers
    assert guarded.engine.seen == []


@pytest.mark.parametrize(
    ("waited", "seconds"), [("7.5", 7.5), ("-7.5", 0.0), ("nan", 0.0), ("inf", 0.0), ("1e9", 0.0), ("é", 0.0)]
)
async def test_latencies_begin_with_the_wait_at_the_gateway(
    guarded: Served, waited: str, seconds: float
) -> None:
    headers = httpx.Headers(
        [*with_tokens(sign_token(NEW, SERVICE, time.time())), (HEADER_WAITED, waited)], encoding="latin-1"
    )
    assert (await guarded.client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
    assert seconds <= await guarded.metric(f"{METRIC_TTFT}_sum") < seconds + 5.0


async def test_a_replica_without_keys_believes_no_wait(served: Served) -> None:
    answer = await served.client.post("/v1/completions", json=BODY, headers={HEADER_WAITED: "7.5"})
    assert answer.status_code == 200
    assert await served.metric(f"{METRIC_TTFT}_sum") < 5.0


async def test_a_websocket_without_a_token_is_refused_too(guarded: Served) -> None:
    url = f"{guarded.client.base_url}".rstrip("/") + "/v1/stream"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await session.ws_connect(url)


async def test_probes_and_metrics_need_no_token_and_their_names_open_nothing_else(guarded: Served) -> None:
    for path in ("/readyz", "/health", "/metrics", "/version"):
        assert (await guarded.client.get(path)).status_code == 200, path
    for path in (
        "//readyz",
        "/readyz/",
        "/metrics/..;/v1/models",
        "/v1/models?/readyz",
        "/%2e/readyz",
        "/openapi.json",
    ):
        assert (await guarded.client.get(path)).status_code == 401, path
