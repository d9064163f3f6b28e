"""What the gateway makes of bytes, beside aiohttp and nginx: it refuses them, or reads what they read."""

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from millrace_gateway.http.server import HttpServer
from testing.gateway_http import connect, read_all, send, serving
from testing.polling import wait_until_async
from tests.gateway.http.byte_cases import (
    CHUNKED,
    FRAMINGS,
    HANDSHAKE,
    HOST,
    LAST,
    NGINX,
    READ,
    REFUSED,
    SMUGGLED,
    echoing,
    nginx_before,
    parse_answers,
)

SECONDS = 4.0
"""To wait for an answer behind which the connection ends."""
TRAILER = b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n1\r\na\r\n0\r\nx"
PASS_OFFERS = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;"


async def ask_aiohttp(data: bytes) -> list[list[str]]:
    async with echoing() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(data)
        answer = await read_all(reader, SECONDS)
        writer.close()
    return await parse_answers(answer)


async def ask_nginx(socket: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(data)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("pieces", [1 << 20, 1], ids=["in one piece", "byte by byte"])
@pytest.mark.parametrize("name", READ)
async def test_what_is_read_is_read_as_others_do(name: str, pieces: int) -> None:
    data = READ[name] + (b"" if name == "HTTP/1.0" else LAST)  # HTTP/1.0 ends the connection by itself
    async with serving() as server:
        ours = await parse_answers(await send(server, data, pieces=pieces, quiet=SECONDS))
    theirs = await ask_aiohttp(data)
    assert ours
    for our, their in zip(ours, theirs, strict=name != "an offer of h2c"):
        is_absolute = their[1].startswith("http")
        assert our == (["GET", "/x", "b:80", ""] if is_absolute else their)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
async def test_what_is_read_is_read_as_nginx_does(tmp_path: Path) -> None:
    async with (
        echoing() as url,
        nginx_before(url.removeprefix("http://"), tmp_path, 'proxy_set_header Connection "";') as socket,
        serving() as server,
    ):
        for name, data in READ.items():
            if name == "HTTP/1.0":  # it has no Host to pass on
                continue
            ours = await parse_answers(await send(server, data + LAST))
            theirs = await parse_answers(await ask_nginx(socket, data + LAST))
            assert theirs[-1][1] == "/end", name
            # It takes an absolute target's path alone, and no offer of another protocol.
            ours = [
                [method, path, "a" if host == "b:80" else host, body] for method, path, host, body in ours
            ]
            assert ours == theirs, name


@pytest.mark.parametrize("name", REFUSED)
async def test_what_may_be_read_in_two_ways_is_refused(name: str) -> None:
    async with serving() as server:
        answer = await send(server, REFUSED[name] + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_http"


OFFERS = list(
    itertools.product(
        [b"GET", b"POST", b"OPTIONS"],
        [b"websocket", b"WebSocket", b"h2c", b"websocket, h2c", b"h2c\r\nUpgrade: websocket"],
        [b"Upgrade", b"keep-alive, upgrade", b"close, Upgrade", b"x\r\nConnection: upgrade"],
        [b"1.1", b"1.0"],
        ["length", "chunks"],
    )
)


async def test_no_offer_of_another_protocol_makes_a_body_a_request() -> None:
    async with serving() as server:
        for method, offer, connection, version, framing in OFFERS:
            told = (method, offer, connection, version, framing)
            head = b"%b /x HTTP/%b\r\n%bConnection: %b\r\nUpgrade: %b\r\n" % (
                method,
                version,
                HOST,
                connection,
                offer,
            )
            reader, writer = await connect(server)
            writer.write(head + FRAMINGS[framing] + LAST)
            async with asyncio.timeout(5):
                answer = await reader.read()
            writer.close()
            is_handshake = (method, version) == (b"GET", b"1.1") and b"h2c" != offer != b"websocket, h2c"
            is_refused = is_handshake or (version, framing) == (b"1.0", "chunks")
            assert answer.startswith(b"HTTP/1.1 400 " if is_refused else b"HTTP/1.1 200 "), told
            targets = [target for _, target, *_ in await parse_answers(answer)]
            closes = b"close" in connection or (version == b"1.0" and b"keep-alive" not in connection)
            assert targets == ([] if is_refused else ["/x"] if closes else ["/x", "/end"]), told


@pytest.mark.parametrize("length", [b"", b"Content-Length: 0\r\n"])
async def test_the_connection_ends_with_a_handshake_that_was_not_switched(length: bytes) -> None:
    async with serving() as server:
        answer = await send(server, HANDSHAKE + length + b"\r\n" + SMUGGLED)
        behind = await send(server, b"GET / HTTP/1.1\r\n" + HOST + b"\r\n" + HANDSHAKE + b"\r\n" + SMUGGLED)
    assert await parse_answers(answer) == [["GET", "/x", "a", ""]]
    assert b"connection: close\r\n" in answer
    assert [target for _, target, *_ in await parse_answers(behind)] == ["/", "/x"]


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
async def test_behind_an_nginx_that_passes_offers_each_client_gets_its_own_answer(tmp_path: Path) -> None:
    swallow = b"POST /swallow HTTP/1.1\r\n" + HOST + b"Content-Length: 40\r\n\r\n"
    ask = b"GET /%b HTTP/1.1\r\n" + HOST + b"Connection: close\r\n%b\r\n%b"
    offer = b"Upgrade: websocket\r\nContent-Length: %d\r\n" % len(swallow)
    async with serving() as server:
        authority = "{}:{}".format(*server.listener.getsockname())
        async with nginx_before(authority, tmp_path, PASS_OFFERS) as socket:
            await ask_nginx(socket, ask % (b"first", b"", b""))
            smuggled = await ask_nginx(socket, ask % (b"smuggler", offer, swallow))
            answer = await ask_nginx(socket, ask % (b"victim", b"", b""))
    assert await parse_answers(answer) == [["GET", "/victim", "a", ""]]
    assert smuggled.startswith(b"HTTP/1.1 400 ")


async def test_bytes_behind_a_whole_request_spoil_only_themselves() -> None:
    async with serving() as server:
        answer = await send(server, READ["chunks"] + b"nonsense\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n" + HOST + b"x: " + b"y" * 70_000,
        b"GET / HTTP/1.1\r\n" + HOST + b"x: y\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"x: y\r\n" * 200,
        b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n1;" + b"x" * 70_000,
        TRAILER + b": y\r\nx" * 20_000,
    ],
    ids=["header", "headers", "unfinished", "chunk extension", "trailers"],
)
async def test_a_head_has_limits(data: bytes) -> None:
    async with serving() as server:
        assert (await send(server, data, pieces=1000)).startswith(b"HTTP/1.1 431 ")


async def test_a_trailer_in_part_counts_as_a_head_in_part() -> None:
    async with serving(max_kept_bytes=10_000) as server:
        answer = await send(server, TRAILER + b": " + b"y" * 30_000, pieces=1000)
        assert (answer[:13], answer.count(b"HTTP/1.1 ")) == (b"HTTP/1.1 429 ", 1)
        await wait_until_async("nothing counts", lambda: not server.num_kept_bytes)


@pytest.mark.parametrize(("size", "status"), [(8 * 1024, b"200"), (8 * 1024 + 1, b"414"), (70_000, b"414")])
async def test_a_target_has_a_limit(size: int, status: bytes) -> None:
    async with serving() as server:
        data = b"GET /".ljust(size + 4, b"x") + b" HTTP/1.1\r\n" + HOST + b"\r\n"
        assert (await send(server, data, pieces=1000)).startswith(b"HTTP/1.1 " + status)


async def test_a_head_has_its_time() -> None:
    async with serving(head_seconds=0.2) as server:
        advance(server, 0.3)
        answer = await asyncio.wait_for(send(server, b"GET / HTTP/1.1\r\nHo"), 5)
    assert b"HTTP/1.1 408 " in answer


def advance(server: HttpServer, seconds: float) -> None:
    """Have the server look at its connections soon, and at a later time."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        for connection in list(server.connections):
            connection.check(loop.time() + seconds)

    loop.call_later(0.05, look)
