"""Who shares computed prefixes and who is computed first, as a request says it."""

import itertools
from typing import Any

import aiohttp
import pytest

from millrace_runtime.api.request.cache_salt import hash_salt
from tests.runtime.api.served import Served

HEADER = "X-Millrace-Cache-Salt"
HI = [{"role": "user", "content": "hi"}]
COMPLETION: tuple[str, dict[str, Any]] = ("completions", {"prompt": "a"})
MESSAGE: tuple[str, dict[str, Any]] = ("messages", {"messages": HI, "max_tokens": 9})
WITH_FIELDS: list[tuple[str, dict[str, Any]]] = [
    COMPLETION,
    ("chat/completions", {"messages": HI}),
    ("responses", {"input": "hi"}),
]


async def ask(served: Served, path: str, body: dict[str, Any], **headers: str) -> Any:
    answer = await served.client.post(f"/v1/{path}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_no_two_pairs_of_header_and_field_have_one_salt() -> None:
    parts = (None, "a", "b", "ab", "ba", "a\0", "\0a", "\0" * 8, "\0" * 7 + "\1a", "é", "\U0001f600")
    pairs = list(itertools.product(parts, parts))
    salts = {hash_salt(None if sender is None else sender.encode(), field) for sender, field in pairs}
    assert len(salts) == len(pairs)
    assert {len(salt) for salt in salts} == {0, 32}
    assert hash_salt(None, None) == b""


@pytest.mark.parametrize(("path", "body"), WITH_FIELDS)
async def test_salt_and_priority_reach_the_engine(served: Served, path: str, body: dict[str, Any]) -> None:
    asked = body | {"cache_salt": "s", "priority": -7}
    await ask(served, path, asked)
    await ask(served, path, asked, **{HEADER: "tenant"})
    await ask(served, path, body, **{HEADER: "tenant"})
    await ask(served, path, body | {"cache_salt": None, "priority": None})
    await ask(served, path, body | {"priority": 7}, **{HEADER: "tenant"})
    assert [(sent.salt, sent.priority) for sent in served.engine.seen] == [
        (hash_salt(None, "s"), -7),
        (hash_salt(b"tenant", "s"), 0),  # no client of several begins before the others
        (hash_salt(b"tenant", None), 0),
        (b"", 0),
        (hash_salt(b"tenant", None), 7),
    ]


async def test_a_large_body_and_anthropics_have_their_salt_too(served: Served) -> None:
    await ask(served, "completions", {"prompt": "a", "user": "x" * 200_000, "cache_salt": "s", "priority": 3})
    await ask(served, *MESSAGE, **{HEADER: "tenant"})
    large, message = served.engine.seen
    assert (large.salt, large.priority) == (hash_salt(None, "s"), 3)
    assert message.salt == hash_salt(b"tenant", None)


async def test_the_header_of_a_websocket_is_that_of_each_of_its_requests(served: Served) -> None:
    url = f"{served.client.base_url}/v1/stream".replace("//v1", "/v1")
    async with aiohttp.ClientSession() as session:
        for headers, sender in (({HEADER: "tenant"}, b"tenant"), ({}, None)):
            async with session.ws_connect(url, headers=headers) as socket:
                for field in (None, "s"):
                    body = {"prompt": "a", "cache_salt": field, "priority": 2}
                    await socket.send_json({"id": "a", "request": body})
                    while "done" not in await socket.receive_json(timeout=20):
                        pass
                    sent = served.engine.seen[-1]
                    assert (sent.salt, sent.priority) == (hash_salt(sender, field), 2)
        async with session.ws_connect(url, headers={HEADER: ""}) as socket:
            await socket.send_json({"id": "a", "request": {"prompt": "a"}})
            refused = await socket.receive_json(timeout=20)
            assert (refused["status"], HEADER in refused["error"]["message"]) == (400, True)


REFUSED: list[tuple[str, Any, str]] = [
    ("cache_salt", "", "length >= 1"),
    ("cache_salt", 5, "Expected `str"),
    ("cache_salt", "x" * 1025, "length <= 1024"),
    ("priority", 0.5, "Expected `int"),
    ("priority", True, "Expected `int"),
    ("priority", "1", "Expected `int"),
    ("priority", 2**31 + 1, "<= 2147483648"),
    ("priority", -(2**31) - 1, ">= -2147483648"),
]


@pytest.mark.parametrize(("field", "value", "said"), REFUSED)
async def test_other_values_are_refused_by_name(served: Served, field: str, value: Any, said: str) -> None:
    for path, body in WITH_FIELDS:
        answer = await served.client.post(f"/v1/{path}", json=body | {field: value})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field)
        assert said in error["message"]
    assert served.engine.seen == []


async def test_a_header_without_one_value_is_refused(served: Served) -> None:
    for headers in ([(HEADER, "")], [(HEADER, "a"), (HEADER, "a")]):
        for path, body in (COMPLETION, MESSAGE):
            answer = await served.client.post(f"/v1/{path}", json=body, headers=headers)
            assert answer.status_code == 400
            assert f"the header `{HEADER}` must have one value" in answer.json()["error"]["message"]
    assert await served.metric("vllm:admission_rejections_total", reason="bad_request") == 4
