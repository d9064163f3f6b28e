"""A server of the gateway's own, with a handler that returns what it got."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from millrace_gateway.http.limits import ConnectionLimits
from millrace_gateway.http.request import Request
from millrace_gateway.http.server import HttpServer

Handle = Callable[[Request], Awaitable[None]]


async def echo(request: Request) -> None:
    """Answer with the method, the target, the Host and the body."""
    while not request.is_complete:
        await request.wait_body()
    taken = [request.method.decode(), request.target, request.host, request.take_body().decode("latin-1")]
    request.respond(200, json.dumps(taken).encode(), [])


@asynccontextmanager
async def serving(handle: Any = echo, **limits: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(handle, ConnectionLimits(**limits))
    await server.start(socket.create_server(("127.0.0.1", 0)), 16)
    yield server
    await server.close()


async def connect(server: HttpServer, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*server.listener.getsockname(), **options)


async def send(server: HttpServer, data: bytes, *, pieces: int = 1 << 20, quiet: float = 0.1) -> bytes:
    """Send the bytes and return everything that comes back, as `read_all`."""
    reader, writer = await connect(server)
    async with asyncio.timeout(5):
        for start in range(0, len(data), pieces):
            writer.write(data[start : start + pieces])
            await asyncio.sleep(0)
        answer = await read_all(reader, quiet)
    writer.close()
    return answer


async def read_all(reader: asyncio.StreamReader, quiet: float = 0.1) -> bytes:
    """Return the bytes until the end, or until none come for a while."""
    found = b""
    try:
        while piece := await asyncio.wait_for(reader.read(1 << 16), quiet):
            found += piece
    except (TimeoutError, ConnectionResetError):
        pass
    return found
