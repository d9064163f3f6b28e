"""A large body is parsed beside the event loop: same answers, and no stream stands still for it."""

import asyncio
import dataclasses
import gc
import json
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.chat.jobs import FromTextWorker
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.protocol.encoding import count_tokens, unpack_tokens
from tests.runtime.api.served import REPLY, Served, serve
from tests.runtime.api.test_failures import BAD_CHATS, BAD_COMPLETIONS, HI, assert_conserved

BESIDE = ApiSettings(served_name="tiny", inline_body_bytes=0)
"""Every body counts as large."""
INLINE = dataclasses.replace(BESIDE, inline_body_bytes=16 << 20)


@pytest.fixture
async def served(model_path: Path) -> AsyncIterator[Served]:
    async with serve(model_path, BESIDE) as served:
        yield served


async def test_answers_are_the_same(served: Served) -> None:
    chat = await served.openai.chat.completions.create(model="tiny", messages=HI, n=2, seed=7)
    assert [choice.message.content for choice in chat.choices] == [REPLY, REPLY]
    texts = await served.openai.completions.create(
        model="tiny", prompt=["a", "bc"], max_tokens=2, stop=["x"], extra_body={"top_k": 5}
    )
    assert texts.usage.prompt_tokens == 3
    tokens = {"prompt": [[1, 2, 3], [261]], "max_tokens": 2}
    assert (await served.client.post("/v1/completions", json=tokens)).status_code == 200
    sent = served.engine.seen
    assert [count_tokens(generate.prompt) for generate in sent] == [18, 1, 2, 3, 1]
    assert [new.sampling.seed for new in sent[0].sequences] == [7, 8]
    assert (sent[1].sequences[0].sampling.top_k, sent[1].max_tokens) == (5, 2)
    assert [list(unpack_tokens(generate.prompt)) for generate in sent[3:]] == [[1, 2, 3], [261]]
    await assert_conserved(served)


async def test_refusals_are_the_same(served: Served) -> None:
    for body, param, said in BAD_COMPLETIONS:
        answer = await served.client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
        assert said in answer.json()["error"]["message"], body
    for change, said in BAD_CHATS:
        answer = await served.client.post("/v1/chat/completions", json={"messages": HI} | change)
        assert answer.status_code == 400, change
        assert said in answer.json()["error"]["message"], change
    for broken in (b"{", b"[" * 100_000, b'{"prompt": [99999999999]}'):
        assert (await served.client.post("/v1/completions", content=broken)).status_code == 400
    other = await served.client.post("/v1/completions", json={"prompt": "a", "model": "other"})
    assert other.status_code == 404
    assert served.engine.seen == []
    await assert_conserved(served)


@pytest.mark.parametrize("settings", [BESIDE, INLINE])
async def test_a_body_that_waits_is_held_once(
    model_path: Path, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"prompt": "%b"}' % (b"x" * 1_000_000)
    async with serve(model_path, settings) as served:
        text = served.replica.text
        await served.client.post("/v1/completions", content=body)
        gate = close_gate(text, monkeypatch)
        tracemalloc.start()
        posts = [asyncio.create_task(served.client.post("/v1/completions", content=body)) for _ in range(9)]
        await served.until(lambda: len(text._large._queue) == 8)  # and the worker has one
        gc.collect()
        num_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert num_bytes < 1.2 * served.replica.admission.num_body_bytes
        gate.set()
        for answer in await asyncio.gather(*posts):
            assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_chats_do_not_wait_for_large_bodies(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"prompt": "%b"}' % (b"x" * 1_000_000)
    async with serve(model_path, ApiSettings(served_name="tiny")) as served:
        text = served.replica.text
        await served.client.post("/v1/completions", content=body)
        gate = close_gate(text, monkeypatch)
        posts = [asyncio.create_task(served.client.post("/v1/completions", content=body)) for _ in range(3)]
        await served.until(lambda: len(text._large._queue) == 2)
        chat = await served.openai.chat.completions.create(model="tiny", messages=HI)
        assert chat.choices[0].message.content == REPLY
        assert not any(post.done() for post in posts)
        gate.set()
        for answer in await asyncio.gather(*posts):
            assert answer.json()["error"]["code"] == "context_length_exceeded"


def close_gate(text: TextWorker, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The process of large jobs gets none until the event that is returned is set."""
    process, gate = text._large._process, asyncio.Event()
    assert process is not None
    ask = process.ask

    async def ask_later(frame: bytes) -> FromTextWorker:
        await gate.wait()
        return await ask(frame)

    monkeypatch.setattr(process, "ask", ask_later)
    return gate


def post_raw(port: int, body: bytes) -> bytes:
    """From a thread, so that sending costs the event loop nothing."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head % len(body) + body)
        return b"".join(iter(lambda: client.recv(65536), b""))


async def longest_stall(served: Served, body: bytes) -> float:
    """The most that the event loop computed without a pause while it served the body, in CPU seconds.

    Of its thread alone, so that other processes of the machine don't count.
    """
    port = served.client.base_url.port
    answering = asyncio.create_task(asyncio.to_thread(post_raw, port, body))
    longest, before = 0.0, time.thread_time()
    while not answering.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    assert b"limit is 200" in await answering
    return longest


async def test_the_largest_body_does_not_stall_the_event_loop(model_path: Path) -> None:
    tokens = [300 + place % 30_000 for place in range(1_390_000)]
    body = json.dumps({"prompt": tokens}, separators=(",", ":")).encode()
    assert 7 << 20 < len(body) < 8 << 20
    stalls = {}
    for settings in (INLINE, ApiSettings(served_name="tiny")):
        async with serve(model_path, settings, job_seconds=30) as served:
            stalls[settings] = min([await longest_stall(served, body) for _ in range(5)])
    inline, beside = stalls.values()
    assert beside < inline / 5  # 6 ms of 82
