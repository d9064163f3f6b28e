"""Requests over one WebSocket, and how they end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from starlette.types import Message
from starlette.websockets import WebSocket

from millrace_runtime.api.settings import ApiSettings, ConnectionLimits
from millrace_runtime.api.stream_socket import StreamSocket
from tests.runtime.api.served import REPLY, Served, serve

TEXT: dict[str, Any] = {"prompt": "a", "max_tokens": 50, "stream": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
Socket = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def connect(served: Served, **headers: str) -> AsyncIterator[Socket]:
    url = f"{served.client.base_url}/v1/stream".replace("//v1", "/v1")
    async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=headers) as socket:
        yield socket


async def read_ends(socket: Socket, num_requests: int) -> tuple[dict[Any, list[Any]], dict[Any, Any]]:
    """Each request's chunks, and its last message."""
    chunks: dict[Any, list[Any]] = {}
    ends: dict[Any, Any] = {}
    while len(ends) < num_requests:
        message = await socket.receive_json(timeout=20)
        request_id = message.pop("id")
        if "chunk" in message:
            chunks.setdefault(request_id, []).append(message["chunk"]["choices"][0])
        else:
            ends[request_id] = message
    return chunks, ends


async def test_requests_of_both_kinds_are_answered_side_by_side(served: Served) -> None:
    async with connect(served) as socket:
        bodies = {"a": TEXT, "b": CHAT, "c": TEXT | {"stream": False}, "d": TEXT | {"n": 2}}
        for request_id, body in bodies.items():
            await socket.send_json({"id": request_id, "request": body})
        chunks, ends = await read_ends(socket, 4)
        assert ends == {request_id: {"done": True} for request_id in bodies}
        assert "".join(choice["text"] for choice in chunks["a"]) == REPLY
        assert "".join(choice["delta"].get("content", "") for choice in chunks["b"]) == REPLY
        assert [choice["text"] for choice in chunks["c"]] == [REPLY]
        assert {choice["index"] for choice in chunks["d"]} == {0, 1}
        assert not served.replica.num_requests


async def test_a_request_may_be_cancelled_and_its_id_used_again(served: Served) -> None:
    served.engine.pauses_after = 3
    async with connect(served) as socket:
        await socket.send_json({"id": "a", "request": TEXT})
        await socket.receive_json(timeout=20)
        await socket.send_json({"cancel": "a"})
        await socket.send_json({"cancel": "unknown"})
        assert (await read_ends(socket, 1))[1] == {"a": {"cancelled": True}}
        await served.until(lambda: len(served.engine.aborted) == 1)
        served.engine.pauses_after = None
        await socket.send_json({"id": "a", "request": TEXT})
        assert (await read_ends(socket, 1))[1] == {"a": {"done": True}}


async def test_the_connections_end_cancels_all(served: Served) -> None:
    served.engine.pauses_after = 3
    async with connect(served) as socket:
        for request_id in ("a", "b"):
            await socket.send_json({"id": request_id, "request": TEXT | {"n": 2}})
        await served.until(lambda: len(served.engine.running) == 4)
    await served.until(lambda: len(served.engine.aborted) == 4)
    await served.replica.wait_idle()
    assert await served.metric("vllm:request_success_total", finished_reason="abort") == 4


@pytest.mark.parametrize(
    ("message", "request_id", "said"),
    [
        ({"id": "a", "request": {"prompt": "a", "n": 129}}, "a", "<= 128"),
        ({"id": "a", "request": {"prompt": "a", "model": "other"}}, "a", "use `tiny`"),
        ({"id": "a"}, None, "send {"),
        ({"id": "a", "request": {"prompt": "a"}, "cancel": "b"}, None, "send {"),
        ({"id": 7, "request": {"prompt": "a"}}, None, "Expected `str"),
        ([], None, "can't be read"),
    ],
)
async def test_what_is_refused_ends_nothing_else(
    served: Served, message: Any, request_id: str | None, said: str
) -> None:
    async with connect(served) as socket:
        await socket.send_json(message)
        _, ends = await read_ends(socket, 1)
        assert said in ends[request_id]["error"]["message"]
        assert ends[request_id].get("status") == (request_id and (404 if "tiny" in said else 400))
        await socket.send_json({"id": "a", "request": TEXT})
        assert (await read_ends(socket, 1))[1] == {"a": {"done": True}}


async def test_a_message_is_read_as_a_body_is(served: Served) -> None:
    """JavaScript writes half a surrogate for a text that was cut inside an emoji."""
    message = json.dumps({"id": "a", "request": CHAT | {"n": "N"}}).replace('"hi"', r'"hi \ud83d"')
    async with connect(served) as socket:
        await socket.send_bytes(b"\xef\xbb\xbf" + message.replace('"N"', "1.0").encode())
        assert (await read_ends(socket, 1))[1] == {"a": {"done": True}}


async def test_an_id_in_flight_and_too_many_requests_are_refused(served: Served) -> None:
    served.engine.is_frozen = True
    async with connect(served) as socket:
        for number in (0, *range(128), 128):
            await socket.send_json({"id": str(number), "request": TEXT})
        errors = [(await socket.receive_json(timeout=20))["error"]["message"] for _ in range(2)]
        assert "'0' is in flight" in errors[0]
        assert "128 requests are in flight" in errors[1]


async def test_a_failure_of_the_engine_is_an_error_of_its_request(served: Served) -> None:
    served.engine.fails_sequences = True
    async with connect(served) as socket:
        await socket.send_json({"id": "a", "request": TEXT})
        assert "not finite" in (await read_ends(socket, 1))[1]["a"]["error"]["message"]


async def test_other_tasks_have_a_turn_between_any_two_messages(served: Served) -> None:
    """A connection that has many messages waits for none of them."""
    message, turns, seen = {"type": "websocket.receive", "text": '{"cancel": "a"}'}, 0, list[int]()

    class Burst(WebSocket):
        async def accept(self, *_: Any) -> None:
            pass

        async def receive(self) -> Message:
            seen.append(turns)
            return message if len(seen) < 50 else {"type": "websocket.disconnect"}

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    scope = {"type": "websocket", "headers": []}
    await StreamSocket(served.replica, Burst(scope, AsyncMock(), AsyncMock())).serve()
    counting.cancel()
    assert len(set(seen)) == 50


async def test_a_page_of_another_origin_gets_no_connection(model_path: Path) -> None:
    settings = ApiSettings(served_name="tiny", allowed_origins=("https://a.example",))
    limits = ConnectionLimits(max_message_bytes=1000)
    async with serve(model_path, settings, limits=limits) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            async with connect(served, Origin="https://b.example"):
                pass
        async with connect(served, Origin=str(served.client.base_url).rstrip("/")):
            pass
        async with connect(served, Origin="https://a.example") as socket:
            await socket.send_str(json.dumps({"id": "a", "request": TEXT | {"user": "x" * 1000}}))
            assert (await socket.receive(timeout=20)).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 1009
        assert (await served.client.get("/v1/stream")).status_code == 404
