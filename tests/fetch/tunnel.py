"""A proxy on 127.0.0.1 that hands on what is inside TLS, as it is asked by CONNECT."""

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Self


class Tunnel:
    """Passes bytes on that it can't read, and knows hosts that no DNS knows."""

    def __init__(self, names: dict[str, str], refusal: int | None = None) -> None:
        self._names = names
        """Where each such host really is, both with their ports."""
        self._refusal = refusal
        """The status that everybody gets instead of a tunnel."""
        self.asked: list[str] = []
        """What the proxy was asked, each request by its first line."""
        self.authorizations: set[str | None] = set()
        self.num_bytes = 0
        """What came from the servers."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def host(self) -> str:
        name, port = self._server.sockets[0].getsockname()
        return f"{name}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self._writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        self.asked.append(line)
        shown = [text.partition(": ")[2] for text in headers if text.lower().startswith("proxy-auth")]
        self.authorizations.add(shown[0] if shown else None)
        if self._refusal:
            status = f"HTTP/1.1 {self._refusal} {HTTPStatus(self._refusal).phrase}"
            writer.write(
                f'{status}\r\nProxy-Authenticate: Basic realm="x"\r\nContent-Length: 0\r\n\r\n'.encode()
            )
            await writer.drain()
            return
        asked = line.split()[1]
        host, _, port = self._names.get(asked, asked).partition(":")
        incoming, outgoing = await asyncio.open_connection(host, int(port))
        self._writers.append(outgoing)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass(reader, outgoing))
            group.create_task(self._pass(incoming, writer, is_counted=True))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_counted: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
                self.num_bytes += len(data) if is_counted else 0
        writer.close()
