"""What a connection may cost before it has a request, and after: raw sockets against the real server."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace_runtime.api.settings import ApiSettings, ConnectionLimits
from tests.runtime.api.served import MUCH, Served, serve

LIMITS = ConnectionLimits(
    head_seconds=0.4,
    body_seconds=2,
    keep_alive_seconds=1,
    max_head_bytes=4096,
    max_headers=20,
    write_stall_seconds=0.5,
)
HEAD = b"GET /version HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
async def served(model_path: Path) -> AsyncIterator[Served]:
    async with serve(model_path, ApiSettings(served_name="tiny"), limits=LIMITS) as served:
        yield served


@contextlib.asynccontextmanager
async def connect(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(served.client.base_url.host, served.client.base_url.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes, which is to be soon."""
    async with asyncio.timeout(5):
        return await reader.read()


async def test_a_connection_without_a_request_is_closed(served: Served) -> None:
    async with contextlib.AsyncExitStack() as stack:
        readers = [(await stack.enter_async_context(connect(served)))[0] for _ in range(50)]
        assert await asyncio.gather(*map(read_to_end, readers)) == [b""] * 50


@pytest.mark.parametrize("byte", [b"x", b"\r\n"])
async def test_a_head_that_trickles_is_cut_off_with_a_408(served: Served, byte: bytes) -> None:
    async with connect(served) as (reader, writer):
        answer = asyncio.create_task(read_to_end(reader))
        writer.write(b"" if byte == b"\r\n" else HEAD + b"X-Slow: ")
        for _ in range(60):
            if answer.done():
                break
            writer.write(byte)
            await asyncio.sleep(0.1)
        assert (await answer).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_kept_connection_has_its_own_limit_and_a_second_head_is_watched(served: Served) -> None:
    async with connect(served) as (reader, writer):
        for _ in range(2):
            writer.write(HEAD + b"\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")
            await asyncio.sleep(0.6)  # longer than a head may take
        writer.write(b"GET /vers")
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 408 ")
    async with connect(served) as (reader, writer):
        writer.write(HEAD + b"\r\n")
        assert (await read_to_end(reader)).endswith(b"}")


MANY = HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(30)) + b"\r\n"
LARGE = HEAD + b"X-Large: " + b"y" * 200_000 + b"\r\n\r\n"
UNENDING = HEAD + b"X-Large: " + b"y" * 8192
LONG_PATH = b"GET /" + b"y" * 8192 + b" HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("head", [MANY, LARGE, UNENDING, LONG_PATH])
async def test_a_head_over_its_bounds_is_a_431(served: Served, head: bytes) -> None:
    async with connect(served) as (reader, writer):
        writer.write(head)
        answer = await read_to_end(reader)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"connection: close\r\n" in answer
    assert b"at most 20 headers and 4096 bytes" in answer


@pytest.mark.parametrize("url", [b"/\xff", b"http://x:port/", b"http://["])
async def test_a_url_that_is_none_is_a_400(served: Served, url: bytes) -> None:
    async with connect(served) as (reader, writer):
        writer.write(HEAD.replace(b"/version", url) + b"\r\n")
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 400 ")


async def test_heads_within_their_bounds_are_served_one_after_the_other(served: Served) -> None:
    padded = HEAD + b"X-Pad: " + b"y" * 3000 + b"\r\n\r\n"
    async with connect(served) as (reader, writer):
        for _ in range(3):
            writer.write(padded)
            assert b"200 OK" in await reader.readuntil(b"}")
        writer.write(padded * 3)  # pipelined
        for _ in range(3):
            assert b"200 OK" in await reader.readuntil(b"}")


async def test_trailers_are_bounded_too(served: Served) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'{"prompt": "a", "max_tokens": 1}'
    async with connect(served) as (reader, writer):
        writer.write(head + b"%x\r\n%b\r\n0\r\n" % (len(body), body))
        writer.write(b"".join(b"X-%d: y\r\n" % number for number in range(30)))
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 431 ")
    await served.replica.wait_idle()


async def test_a_client_that_stops_reading_gives_its_sequence_back(served: Served) -> None:
    served.engine.reply = [1]
    url = served.client.base_url
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    body = json.dumps(MUCH | {"stream": True}).encode()
    with client:
        await asyncio.get_running_loop().sock_connect(client, (url.host, url.port))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        served.engine.pauses_after = 150  # it never ends of itself
        await asyncio.get_running_loop().sock_sendall(client, head + body)
        await served.until(lambda: len(served.engine.aborted) == 128)
        await served.replica.wait_idle()
    assert await served.metric("vllm:request_success_total", finished_reason="abort") == 128
    assert served.replica.admission.num_sequences == 0


@contextlib.asynccontextmanager
async def ask(
    served: Served, *bodies: dict[str, object], behind: bytes = b""
) -> AsyncIterator[asyncio.StreamReader]:
    """Connect with a small window and send the requests; the last one ends the connection, or `behind`."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    url = served.client.base_url
    await asyncio.get_running_loop().sock_connect(client, (url.host, url.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=16384)
    for body in bodies:
        closes = b"Connection: close\r\n" if body is bodies[-1] and not behind else b""
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + closes)
        content = json.dumps(body).encode()
        writer.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
    writer.write(behind)
    yield reader
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def read_steadily(reader: asyncio.StreamReader) -> bytes:
    """Read about 2 MB/s until the server closes.

    The kernel asks the loop for more whenever a third of its buffer is free: 1.4 MB here, and so less often
    than a client may stall.
    """
    answer = bytearray()
    async with asyncio.timeout(60):
        while data := await reader.read(16384):
            answer += data
            await asyncio.sleep(len(data) / 2e6)
    return bytes(answer)


async def test_a_whole_answer_that_is_read_steadily_is_not_cut(served: Served) -> None:
    began = time.monotonic()
    async with ask(served, MUCH) as reader:
        answer = await read_steadily(reader)
    assert time.monotonic() - began > 2 * LIMITS.write_stall_seconds
    assert answer.endswith(b"}}")


async def test_a_whole_answer_is_not_cut_by_what_ends_the_connection_behind_it(served: Served) -> None:
    async with ask(served, MUCH, behind=b"\x00garbage\r\n\r\n") as reader:
        answer = await read_steadily(reader)
    assert answer.endswith(b"}}")


async def test_a_kept_connections_second_answer_is_not_cut_by_the_clock_of_the_first(served: Served) -> None:
    async with ask(served, MUCH | {"max_tokens": 100}, MUCH | {"stream": True, "max_tokens": 50}) as reader:
        answer = await read_steadily(reader)
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_stream_that_is_read_steadily_is_not_cut(served: Served) -> None:
    async with ask(served, MUCH | {"stream": True, "max_tokens": 80}) as reader:
        answer = await read_steadily(reader)
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
