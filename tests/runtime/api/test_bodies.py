"""What a request's body may cost while it arrives: raw sockets against the real server."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest

from millrace_runtime.api.settings import ApiSettings
from tests.runtime.api.served import Served, serve
from tests.runtime.api.test_failures import assert_conserved

SETTINGS = ApiSettings(served_name="tiny", max_requests=4, max_body_memory=1 << 20, body_seconds=20)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def served(model_path: Path) -> AsyncIterator[Served]:
    async with serve(model_path, SETTINGS) as served:
        yield served


class Upload:
    """A client that sends a body piece by piece."""

    def __init__(self, served: Served, head: bytes) -> None:
        self._served, self._head = served, head

    async def __aenter__(self) -> Self:
        url = self._served.client.base_url
        self.reader, self._writer = await asyncio.open_connection(url.host, url.port)
        self._writer.write(self._head)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def send_chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")

    async def answer(self) -> str:
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
        return head.decode().lower()


def is_overloaded(answer: str) -> bool:
    return answer.startswith("http/1.1 429 ") and "retry-after: " in answer


async def test_a_chunked_body_counts_against_the_waiting_tokens(model_path: Path) -> None:
    async with serve(model_path, dataclasses.replace(SETTINGS, max_queued_tokens=300)) as served:
        async with Upload(served, CHUNKED) as first, Upload(served, CHUNKED) as second:
            await first.send_chunk(b" " * 8000)
            await served.until(lambda: served.replica.admission.num_queued_tokens == 200)
            await second.send_chunk(b" " * 8000)
            assert is_overloaded(await second.answer())
            await first.send_chunk(b'{"prompt": "a", "max_tokens": 1}')
            first.end()
            assert "200 ok" in await first.answer()
        await served.replica.wait_idle()
        assert served.replica.admission.num_queued_tokens == 0
        await assert_conserved(served)


async def test_a_body_that_is_only_declared_keeps_nobody_out(model_path: Path) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny")) as served:
        async with Upload(served, POST + b"Content-Length: 8388608\r\n\r\n") as upload:
            await served.until(lambda: served.replica.admission.num_sequences)
            await upload.send_chunk(b" " * 100_000)
            await served.until(lambda: served.replica.admission.num_queued_tokens == 200)
            other = await served.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
            assert other.status_code == 200
        await served.until(lambda: not served.replica.admission.num_sequences)
        await assert_conserved(served)


async def test_a_prompt_that_never_fits_is_told_so_even_by_a_full_replica(model_path: Path) -> None:
    async with serve(model_path, dataclasses.replace(SETTINGS, max_queued_tokens=250)) as served:
        served.engine.pauses_after = 0
        first = asyncio.create_task(served.client.post("/v1/completions", json={"prompt": [1] * 100}))
        await served.until(lambda: served.engine.seen)
        never = await served.client.post("/v1/completions", json={"prompt": [1] * 201})
        assert (never.status_code, never.json()["error"]["code"]) == (400, "context_length_exceeded")
        served.engine.pauses_after = None
        assert (await first).status_code == 200


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_all_bodies_together_fit_the_memory_that_is_theirs(served: Served, *, is_chunked: bool) -> None:
    admission = served.replica.admission
    large = b" " * 700_000
    head = CHUNKED if is_chunked else POST + b"Content-Length: 700000\r\n\r\n"
    async with Upload(served, CHUNKED) as first:
        await first.send_chunk(large)
        await served.until(lambda: admission.num_body_bytes == 700_000)
        async with Upload(served, head) as second:
            await second.send_chunk(large)
            answer = await second.answer()
            assert is_overloaded(answer)
        await served.until(lambda: admission.num_sequences == 1)
        small = await served.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert small.status_code == 200
        await first.send_chunk(b'{"prompt": "a", "max_tokens": 1}')
        first.end()
        assert "200 ok" in await first.answer()
    await served.replica.wait_idle()
    assert admission.num_body_bytes == 0
    await assert_conserved(served)


async def test_a_body_alone_may_be_larger_than_the_memory_for_all(model_path: Path) -> None:
    async with serve(model_path, dataclasses.replace(SETTINGS, max_body_memory=1000)) as served:
        body = b" " * 5000 + b'{"prompt": "a", "max_tokens": 1}'
        assert (await served.client.post("/v1/completions", content=body)).status_code == 200


async def test_a_body_is_let_go_once_it_is_read(served: Served) -> None:
    served.engine.pauses_after = 0
    body = b" " * 700_000 + b'{"prompt": "a", "max_tokens": 1}'
    answers = [asyncio.create_task(served.client.post("/v1/completions", content=body))]
    await served.until(lambda: served.engine.seen)
    assert served.replica.admission.num_body_bytes == 0
    answers.append(asyncio.create_task(served.client.post("/v1/completions", content=body)))
    await served.until(lambda: len(served.engine.seen) == 2)
    served.engine.pauses_after = None
    assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200, 200]


async def test_stalled_uploads_are_ended_and_give_their_places_back(model_path: Path) -> None:
    async with serve(model_path, dataclasses.replace(SETTINGS, body_seconds=0.5)) as served:
        began = time.monotonic()
        uploads = [
            Upload(served, CHUNKED if place % 2 else POST + b"Content-Length: 100\r\n\r\n")
            for place in range(4)
        ]
        async with uploads[0], uploads[1], uploads[2], uploads[3]:
            await served.until(lambda: served.replica.admission.num_sequences == 4)
            assert await served.metric("vllm:num_requests_waiting") == 4
            full = await served.client.post("/v1/completions", json={"prompt": "a"})
            assert full.status_code == 429
            served.replica.begin_drain()
            await served.replica.wait_idle()
            assert time.monotonic() - began < 10
            for upload in uploads:
                answer = await upload.answer()
                assert answer.startswith("http/1.1 408 ")
                assert "connection: close" in answer
                await upload.reader.read()
        assert await served.metric("vllm:admission_rejections_total", reason="read_timeout") == 4
        await assert_conserved(served)


async def test_an_upload_that_trickles_is_ended_too(model_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, body_seconds=0.5)
    async with serve(model_path, settings) as served, Upload(served, CHUNKED) as upload:
        answer = asyncio.create_task(upload.answer())
        for _ in range(40):
            if answer.done():
                break
            await upload.send_chunk(b" ")
            await asyncio.sleep(0.05)
        assert (await answer).startswith("http/1.1 408 ")
