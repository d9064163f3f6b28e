"""What becomes of a body whose answer came first: raw sockets and a client against the real server."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.contract import HEADER_DRAINING
from tests.runtime.api.served import Served, serve
from tests.runtime.api.test_connections import HEAD, LIMITS, connect, read_to_end

SETTINGS = ApiSettings(served_name="tiny", max_body_bytes=1 << 20)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
LOST = b"POST /lost HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"


@pytest.fixture
async def served(model_path: Path) -> AsyncIterator[Served]:
    async with serve(model_path, SETTINGS, limits=LIMITS) as served:
        yield served


async def test_a_draining_replica_tells_a_client_that_is_still_sending(served: Served) -> None:
    served.replica.begin_drain()
    async with httpx.AsyncClient(base_url=served.client.base_url) as client:
        for _ in range(5):
            answer = await client.post("/v1/completions", content=b" " * (7 << 20))
            assert (answer.status_code, answer.headers["connection"]) == (503, "close")
            assert HEADER_DRAINING in answer.headers


async def test_a_client_that_wants_no_other_request_finds_its_413(served: Served) -> None:
    async with connect(served) as (reader, writer):
        writer.write(POST + b"Connection: close\r\nContent-Length: 7340032\r\n\r\n" + b" " * (7 << 20))
        await writer.drain()
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_took_too_long_and_comes_after_all_finds_its_408(model_path: Path) -> None:
    hasty = dataclasses.replace(SETTINGS, body_seconds=0.2)
    async with serve(model_path, hasty, limits=LIMITS) as served, connect(served) as (reader, writer):
        writer.write(POST + b"Content-Length: 1000000\r\n\r\n")
        await asyncio.sleep(0.5)
        writer.write(b" " * 1_000_000)
        await writer.drain()
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("rest", [b"garbage\r\n", b"0\r\n" + b"X: y\r\n" * 30, b"1;" + b"x" * 8192])
async def test_one_request_has_one_answer_whatever_its_body_goes_on_with(served: Served, rest: bytes) -> None:
    async with connect(served) as (reader, writer):
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (2 << 20, b" " * (2 << 20)))
        assert b" 413 " in await reader.readuntil(b"}}")
        writer.write(rest)
        assert await read_to_end(reader) == b""


async def test_the_rest_of_a_body_has_a_bodys_time_and_another_request_may_follow(served: Served) -> None:
    async with connect(served) as (reader, writer):
        writer.write(LOST)
        assert b" 404 " in await reader.readuntil(b"}}")
        for _ in range(10):
            await asyncio.sleep(0.1)
            writer.write(b"x")
        writer.write(HEAD + b"\r\n")
        assert b" 200 " in await reader.readuntil(b"}")


async def test_the_rest_of_a_body_that_never_ends_is_cut_off(served: Served) -> None:
    async with connect(served) as (reader, writer):
        writer.write(LOST.replace(b"10", b"1000000"))
        answer = asyncio.create_task(read_to_end(reader))
        async with asyncio.timeout(10):
            while not answer.done():
                writer.write(b"x")
                await asyncio.sleep(0.1)
        with contextlib.suppress(ConnectionResetError):
            assert b" 404 " in await answer


async def test_a_head_behind_the_rest_of_a_body_has_a_heads_time(served: Served) -> None:
    async with connect(served) as (reader, writer):
        writer.write(LOST)
        assert b" 404 " in await reader.readuntil(b"}}")
        writer.write(b"x" * 10)
        await asyncio.sleep(0.1)
        writer.write(b"GET /vers")
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("behind", [b"", b"GET /vers"])
async def test_a_connection_that_idles_behind_the_rest_of_a_body_is_closed(
    served: Served, behind: bytes
) -> None:
    async with connect(served) as (reader, writer):
        writer.write(LOST)
        assert b" 404 " in await reader.readuntil(b"}}")
        writer.write(b"x" * 10 + behind)
        assert await read_to_end(reader) == b""
