"""Requests with the same beginning go to the same replica, whichever gateway has them."""

import json
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from millrace_runtime.contract import PATH_CHAT_COMPLETIONS
from testing.gateway_bench import Bench


def write_chat(system: int, user: int) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": f"You are assistant {system}. " * 40},
        {"role": "user", "content": f"This is conversation {user}."},
    ]
    return {"model": "chat", "messages": messages}


async def test_a_beginning_and_a_session_have_their_replica(bench: Bench) -> None:
    seen: dict[str, Counter[str]] = {}

    async def note(request: web.Request) -> web.Response:
        if request.path != PATH_CHAT_COMPLETIONS:
            return web.Response(status=404)
        name = (await request.json())["messages"][0]["content"][:20]
        address = request.transport.get_extra_info("sockname")[0]  # type: ignore[union-attr]
        seen.setdefault(name, Counter())[address] += 1
        return web.json_response({})

    bench.add_service("team", "chat")
    for _ in range(4):
        await bench.add_upstream("team", "chat", note)
    for turn in range(12):
        for system in range(12):
            body = json.dumps(write_chat(system, turn))
            async with bench.client.post(bench.url + PATH_CHAT_COMPLETIONS, data=body) as answer:
                assert answer.status == 200
    for places in seen.values():
        assert places.most_common(1)[0][1] >= 6  # the first ones go to the idlest, and to several homes
    assert len({places.most_common(1)[0][0] for places in seen.values()}) > 1


@pytest.mark.parametrize(
    ("bench", "headers", "more"),
    [({}, {"X-Session-Id": "s1"}, {}), ({"sessions_by_user": True}, {}, {"user": "u1"})],
    indirect=["bench"],
)
async def test_a_session_has_one_replica(bench: Bench, headers: dict[str, str], more: dict[str, str]) -> None:
    addresses = set()

    async def note(request: web.Request) -> web.Response:
        addresses.add(request.transport.get_extra_info("sockname")[0])  # type: ignore[union-attr]
        return web.json_response({})

    bench.add_service("team", "chat")
    for _ in range(4):
        await bench.add_upstream("team", "chat", note)
    for system in range(8):
        body = json.dumps(write_chat(system, 0) | more)
        async with bench.client.post(bench.url + PATH_CHAT_COMPLETIONS, data=body, headers=headers) as answer:
            assert answer.status == 200
    assert len(addresses) == 1
