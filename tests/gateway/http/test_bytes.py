"""What the gateway makes of bytes, beside aiohttp and nginx: it refuses them, or reads what they read."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from millrace_gateway.http.server import HttpServer
from testing.addresses import url_of
from testing.gateway_http import read_all, send, serving

HOST = b"Host: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
READ = {
    "a body by its length": b"POST /x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc",
    "two requests at once": (b"POST /x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc") * 2,
    "chunks": b"POST /x HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3\r\nabc\r\n2;a=b\r\nde\r\n0\r\n\r\n",
    "a trailer": b"POST /x HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n1\r\na\r\n0\r\nx-t: 1\r\n\r\n",
    "empty lines first": b"\r\n\r\nGET /x HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/1.0": b"GET /x HTTP/1.0\r\n\r\n",
    "a query": b"GET /x?a=%2F%20b&c HTTP/1.1\r\n" + HOST + b"\r\n",
    "a dotted path": b"GET /v1/../metrics HTTP/1.1\r\n" + HOST + b"\r\n",
    "an absolute target": b"GET http://b:80/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "an offer of h2c": (
        b"POST /x HTTP/1.1\r\n"
        + HOST
        + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"
        b"GET /y HTTP/1.1\r\n" + HOST + b"\r\n"
    ),
}
REFUSED = {
    "length and chunks": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 3\r\n"
    + CHUNKED
    + b"\r\n0\r\n\r\n",
    "chunks and length": b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\nabc",
    "another encoding": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two encodings": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks of HTTP/1.0": b"POST / HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n0\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\n" + HOST + b"x: 1\r\n y\r\n\r\n",
    "bare newlines": b"GET / HTTP/1.1\nHost: a\n\n",
    "a bare newline of a chunk": b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3\nabc\n0\n\n",
    "a zero byte": b"GET / HTTP/1.1\r\n" + HOST + b"x: a\0b\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + b"Host: b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a fragment": b"GET /x#y HTTP/1.1\r\n" + HOST + b"\r\n",
    "a target of a proxy": b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "user and password": b"GET http://u:p@b/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


async def parse_answers(answer: bytes) -> list[list[str]]:
    return [json.loads(body) for body in re.findall(rb"\r\n\r\n(\[.*?\])(?=HTTP|$)", answer)]


NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
NGINX_CONFIG = """
daemon off; master_process off; error_log stderr crit; pid {folder}/pid;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen unix:{folder}/socket;
    location / {{ proxy_pass {url}; proxy_http_version 1.1; proxy_set_header Host $http_host; }}
  }}
}}
"""


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """Yield the address of aiohttp, which answers with what it has read."""

    async def tell(request: web.BaseRequest) -> web.Response:
        body = (await request.read()).decode("latin-1")
        told = [request.method, request.raw_path, request.headers.get("Host", ""), body]
        return web.json_response(told)

    runner = web.ServerRunner(web.Server(tell, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield url_of(site, "127.0.0.1")
    finally:
        await runner.cleanup()


async def ask_aiohttp(data: bytes) -> list[list[str]]:
    async with echoing() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(data)
        answer = await read_all(reader)
        writer.close()
    return await parse_answers(answer)


@asynccontextmanager
async def nginx_before(url: str, folder: Path) -> AsyncIterator[Path]:
    """Yield the socket of an nginx that passes requests on to the address."""
    config, socket = folder / "nginx.conf", folder / "socket"
    config.write_text(NGINX_CONFIG.format(folder=folder, url=url))
    process = await asyncio.create_subprocess_exec(str(NGINX), "-c", str(config), "-p", str(folder))
    try:
        while not socket.exists():
            assert process.returncode is None, "nginx has ended"
            await asyncio.sleep(0.01)
        yield socket
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.parametrize("pieces", [1 << 20, 1], ids=["in one piece", "byte by byte"])
@pytest.mark.parametrize("name", READ)
async def test_what_is_read_is_read_as_others_do(name: str, pieces: int) -> None:
    async with serving() as server:
        ours = await parse_answers(await send(server, READ[name], pieces=pieces))
    theirs = await ask_aiohttp(READ[name])
    assert ours
    for our, their in zip(ours, theirs, strict=name != "an offer of h2c"):
        is_absolute = their[1].startswith("http")
        assert our == (["GET", "/x", "b:80", ""] if is_absolute else their)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
async def test_what_is_read_is_read_as_nginx_does(tmp_path: Path) -> None:
    last = b"GET /end HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    async with echoing() as url, nginx_before(url, tmp_path) as socket, serving() as server:
        for name, data in READ.items():
            if name == "HTTP/1.0":  # it has no Host to pass on
                continue
            ours = await parse_answers(await send(server, data + last))
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(data + last)
            async with asyncio.timeout(30):
                theirs = await parse_answers(await reader.read())
            writer.close()
            assert theirs[-1][1] == "/end", name
            # It takes an absolute target's path alone, and no offer of another protocol.
            ours = [
                [method, path, "a" if host == "b:80" else host, body] for method, path, host, body in ours
            ]
            assert ours == theirs, name


@pytest.mark.parametrize("name", REFUSED)
async def test_what_may_be_read_in_two_ways_is_refused(name: str) -> None:
    async with serving() as server:
        answer = await send(server, REFUSED[name] + b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_http"


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
        b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n0\r\n" + b"x: y\r\n" * 20_000,
    ],
    ids=["header", "headers", "unfinished", "chunk extension", "trailers"],
)
async def test_a_head_has_limits(data: bytes) -> None:
    async with serving() as server:
        assert (await send(server, data, pieces=1000)).startswith(b"HTTP/1.1 431 ")


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
