"""Stands between an operator and the API server, and strikes at a write: before it is sent or after it lands.

It listens on 127.0.0.1 without TLS, in a thread of its own, and passes everything on, watches too.
"""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import NamedTuple, Self

import aiohttp
from aiohttp import web

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
DROPPED = frozenset({"host", "content-length", "transfer-encoding", "connection"})


class Moment(StrEnum):
    """When to strike."""

    LOST = "lost"
    """The write never reaches the API server."""
    LANDED = "landed"
    """It is done, and nobody learns of it."""
    HELD = "held"
    """It is on its way until `release` is called, and arrives then also where its sender has given it up."""


class Strike(NamedTuple):
    """What is to happen to a write, and which one it is."""

    number: int
    """From 1 on, among those that count."""
    moment: Moment
    act: Callable[[], None]
    counts: Callable[[str], bool]
    """Whether a write counts, by its method and path."""


class ApiProxy:
    """One way to the API server, for one operator. It listens while entered."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._url = url
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._released = asyncio.Event()
        self._late: set[asyncio.Task[web.Response]] = set()
        self._strikes: dict[str, Strike] = {}
        """By what the write speaks of."""
        self.writes: list[str] = []
        """Methods and paths of the writes that were passed on, the Lease's left out."""
        self.answers: list[int] = []
        """The statuses of their answers."""
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def server(self) -> str:
        """What an operator takes for the API server."""
        return f"http://127.0.0.1:{self.port}"

    def render_kubeconfig(self) -> str:
        """Return a kubeconfig without credentials: the proxy has them."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "proxy", "cluster": {"server": self.server}}],
                "users": [{"name": "nobody", "user": {}}],
                "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
                "current-context": "proxy",
            }
        )

    def strike(
        self,
        name: str,
        number: int,
        moment: Moment,
        act: Callable[[], None] = lambda: None,
        counts: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Call `act` once, at the write of that number, from 1 on, that speaks of an object named so.

        `counts` says of a write's method and path whether it is one of them. Each name has its own strike.
        """
        self._strikes[name] = Strike(number, moment, act, counts)

    @property
    def has_struck(self) -> bool:
        """Whether each `strike` has come."""
        return not self._strikes

    @property
    def awaited(self) -> list[str]:
        """The names whose strike has not come."""
        return sorted(self._strikes)

    def release(self) -> None:
        """Pass on the writes that are held."""
        self._loop.call_soon_threadsafe(self._released.set)

    def _call(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # type: ignore[arg-type]

    def wait_until_quiet(self, seconds: float = 5.0) -> None:
        """Wait until the operator writes nothing for so long: its first decisions follow its children."""
        num_writes = -1
        while num_writes != len(self.writes):
            num_writes = len(self.writes)
            time.sleep(seconds)

    async def _begin(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _end(self) -> None:
        for late in self._late:
            late.cancel()
        await self._runner.cleanup()
        await self._session.close()
        await asyncio.sleep(0.25)  # its transports end in turns of the loop

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        moment = self._find_strike(request, body)
        if moment is Moment.LOST:
            raise web.HTTPBadGateway
        if moment is Moment.HELD:
            late = asyncio.create_task(self._pass_on_late(request, body))
            self._late.add(late)
            return await asyncio.shield(late)
        try:
            return await self._pass_on(request, body, is_answered=moment is not Moment.LANDED)
        except aiohttp.ClientError as error:
            raise web.HTTPBadGateway from error

    def _find_strike(self, request: web.Request, body: bytes) -> Moment | None:
        """Count this request, and strike if it is its turn."""
        if not is_write(request):
            return None
        named = (name for name in self._strikes if name in request.path or name.encode() in body)
        name = next(named, None)
        if name is None or not self._strikes[name].counts(describe_write(request)):
            return None
        strike = self._strikes[name]
        if strike.number > 1:
            self._strikes[name] = strike._replace(number=strike.number - 1)
            return None
        del self._strikes[name]
        if strike.moment is not Moment.LANDED:
            strike.act()
            return strike.moment
        self._act_later = strike.act
        return strike.moment

    async def _pass_on_late(self, request: web.Request, body: bytes) -> web.Response:
        await self._released.wait()
        async with self._send(request, body) as answer:
            self._note(request, answer.status)
            return web.Response(
                status=answer.status, body=await answer.read(), headers=select(answer.headers)
            )

    async def _pass_on(self, request: web.Request, body: bytes, *, is_answered: bool) -> web.StreamResponse:
        async with self._send(request, body) as answer:
            self._note(request, answer.status)
            if not is_answered:
                self._act_later()
                raise web.HTTPBadGateway
            response = web.StreamResponse(status=answer.status, headers=select(answer.headers))
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            except (aiohttp.ClientError, ConnectionResetError):
                if request.transport is not None:
                    request.transport.abort()  # broken off there, broken off here
            return response

    def _send(self, request: web.Request, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.request(
            request.method,
            f"{self._url}{request.raw_path}",
            data=body or None,
            headers=select(request.headers),
            skip_auto_headers=("Content-Type",),
        )

    def _note(self, request: web.Request, status: int) -> None:
        if is_write(request):
            self.writes.append(describe_write(request))
            self.answers.append(status)


def describe_write(request: web.Request) -> str:
    """Return method and path. A merge patch has a method of its own here: an apply is a PATCH too."""
    is_merge = "merge-patch" in request.headers.get("Content-Type", "")
    return f"{'MERGE' if is_merge else request.method} {request.path}"


def is_write(request: web.Request) -> bool:
    """Whether it writes something other than a Lease."""
    return request.method in WRITES and "/leases" not in request.path


def select(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are not of one connection alone."""
    return {name: value for name, value in headers.items() if name.lower() not in DROPPED}
