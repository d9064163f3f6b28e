"""Requests as bytes, and the servers that read them beside the gateway: aiohttp and nginx."""

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from testing.addresses import url_of

HOST = b"Host: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
FRAMINGS = {
    "length": b"Content-Length: %d\r\n\r\n%b" % (len(SMUGGLED), SMUGGLED),
    "chunks": CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED),
}
HANDSHAKE = b"GET /x HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
LAST = b"GET /end HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
"""A request behind which the connection ends."""
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
    "a method of proxies": b"CONNECT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc",
    "a handshake with a length": HANDSHAKE + FRAMINGS["length"],
    "a handshake with chunks": HANDSHAKE + FRAMINGS["chunks"],
    "a target of a proxy": b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "user and password": b"GET http://u:p@b/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
NGINX_CONFIG = """
daemon off; master_process off; error_log stderr crit; pid {folder}/pid;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream behind {{ server {authority}; keepalive 1; }}
  server {{
    listen unix:{folder}/socket;
    proxy_http_version 1.1; proxy_set_header Host $http_host; {more}
    location / {{ proxy_pass http://behind; }}
  }}
}}
"""


async def parse_answers(answer: bytes) -> list[list[str]]:
    return [json.loads(body) for body in re.findall(rb"\r\n\r\n(\[.*?\])(?=HTTP|$)", answer)]


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


@asynccontextmanager
async def nginx_before(authority: str, folder: Path, more: str = "") -> AsyncIterator[Path]:
    """Yield the socket of an nginx that passes requests on to the address, over connections that it keeps."""
    config, path = folder / "nginx.conf", folder / "socket"
    config.write_text(NGINX_CONFIG.format(folder=folder, authority=authority, more=more))
    process = await asyncio.create_subprocess_exec(str(NGINX), "-c", str(config), "-p", str(folder))
    try:
        while not accepts(path):
            assert process.returncode is None, "nginx has ended"
            await asyncio.sleep(0.01)
        yield path
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def accepts(path: Path) -> bool:
    """Whether a server takes connections there: its socket exists a moment before."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0
