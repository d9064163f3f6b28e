"""What comes behind a request that is being answered: raw sockets against the real server, on both loops."""

import asyncio
import json
import re

import pytest

from testing.gateway_http import read_all
from tests.runtime.api.served import Served
from tests.runtime.api.test_connections import connect, read_to_end

GET = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
OVERSIZED = b"GET /x HTTP/1.1\r\nX: " + b"y" * 40_000
GARBAGE = b"\x00garbage\r\n\r\n"
H2C = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
)


def post(headers: bytes = b"", **fields: object) -> bytes:
    body = json.dumps({"prompt": "a", "max_tokens": 3} | fields).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n"
    return head % (headers, len(body)) + body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("behind", [GET, post(), OVERSIZED, GARBAGE])
async def test_a_client_that_leaves_is_noticed_whatever_it_has_sent_behind(
    served: Served, behind: bytes, *, stream: bool
) -> None:
    served.engine.pauses_after = 2
    async with connect(served) as (_, writer):
        writer.write(post(stream=stream, n=4, max_tokens=100))
        await served.until(lambda: len(served.engine.running) == 4)
        writer.write(behind)
        await asyncio.sleep(0.1)
        assert served.engine.aborted == []
    await served.until(lambda: len(served.engine.aborted) == 4)
    await served.replica.wait_idle()


async def test_more_than_a_little_behind_a_request_ends_the_connection(served: Served) -> None:
    served.engine.pauses_after = 2
    async with connect(served) as (_, writer):
        writer.write(post(max_tokens=100))
        await served.until(lambda: served.engine.running)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
        for _ in range(9):
            writer.write(b" " * 10_000)
            await asyncio.sleep(0.02)
        await served.until(lambda: served.engine.aborted)
    await served.replica.wait_idle()
    assert served.replica.engine.num_open == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("behind", [OVERSIZED, GARBAGE])
async def test_what_can_not_be_parsed_leaves_the_answer_before_it_whole(
    served: Served, behind: bytes, *, stream: bool
) -> None:
    served.engine.pauses_after = served.engine.num_steps + 2
    async with connect(served) as (reader, writer):
        writer.write(post(stream=stream))
        await served.until(lambda: served.engine.num_steps == 2)
        writer.write(behind)
        await asyncio.sleep(0.1)
        served.engine.pauses_after = None
        answer = await read_to_end(reader)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"0\r\n\r\n" if stream else b"}")
    assert (b"[DONE]" in answer) == stream


async def test_garbage_instead_of_a_body_is_a_400_and_gives_the_place_back(served: Served) -> None:
    async with connect(served) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await served.until(lambda: served.replica.admission.num_sequences)
        writer.write(b"nonsense\r\n")
        answer = await read_to_end(reader)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    await served.replica.wait_idle()


@pytest.mark.parametrize("is_split", [True, False])
async def test_an_offer_to_upgrade_is_declined_and_the_request_served(
    served: Served, *, is_split: bool
) -> None:
    async with connect(served) as (reader, writer):
        for headers in (H2C, H2C.replace(b"h2c", b"websocket"), b""):
            head, _, body = post(headers).partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            if is_split:
                await asyncio.sleep(0.05)
            writer.write(body)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 OK")
            await reader.readuntil(b"}}}")  # the last field of the usage is an object
        writer.write(GET.replace(b"\r\n\r\n", b"\r\n" + H2C + b"\r\n") + GET)
        for _ in range(2):
            assert b"200 OK" in await reader.readuntil(b"}")


@pytest.mark.parametrize(
    ("target", "more", "statuses"),
    [
        (b"/health", b"", [b"200", b"200"]),
        (b"/v1/stream", b"", [b"400"]),
        (
            b"/v1/stream",
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a\r\nOrigin: http://b\r\n",
            [b"403"],
        ),
    ],
    ids=["another path", "no key", "another origin"],
)
@pytest.mark.parametrize("is_split", [True, False])
async def test_the_body_of_a_handshake_is_no_request(
    served: Served, target: bytes, more: bytes, statuses: list[bytes], *, is_split: bool
) -> None:
    """A proxy passes such a body on and keeps the connection: the next client would get its answer."""
    body = GET.replace(b"/version", b"/smuggled")
    head = b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%b" % (target, more)
    async with connect(served) as (reader, writer):
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
        if is_split:
            await asyncio.sleep(0.02)
        writer.write(body + GET.replace(b"Host", b"Connection: close\r\nHost"))
        answer = await read_all(reader, 5)
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answer) == statuses
