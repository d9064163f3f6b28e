"""A forward proxy on 127.0.0.1, as the environment's HTTP_PROXY names one."""

from collections import Counter
from typing import Self

import aiohttp
from aiohttp import web
from yarl import URL

from testing.model_sources.servers import Server

_OWN = ("content-length", "transfer-encoding", "connection", "date", "server")


class Proxy:
    """Passes requests on, and knows hosts that no DNS knows."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        """Where each such host really is."""
        self._server = Server(self._pass)
        self.num_requests: Counter[str] = Counter()
        """By host."""
        self.num_bytes = 0
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return self._server.url

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__(None, None, None)
        await self._session.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        host = request.url.host_port_subcomponent or ""
        self.num_requests[host] += 1
        self.paths.append(request.path_qs)
        url = URL(f"http://{self._names.get(host, host)}{request.url.raw_path_qs}", encoded=True)
        async with self._session.request(
            request.method, url, headers=request.headers, allow_redirects=False
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OWN}
            response = web.StreamResponse(status=answer.status, headers=kept)
            if length := answer.headers.get("Content-Length"):
                response.content_length = int(length)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
                self.num_bytes += len(chunk)
            return response
