"""A watch that follows a fake API server, for all tests of this folder."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from millrace_kubernetes import watch
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.collection import Object, Source
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.watch import Watch
from testing.api_server import FakeApiServer
from testing.polling import wait_until_async

PODS = Source("/api/v1/pods", "app=web")


class Recorded:
    """A sink that keeps names, and fails where a test wants it."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lists: list[list[str]] = []
        self.refused = ""
        """The name of objects that it fails at."""
        self.num_refused_lists = 0
        """How many lists it fails at next."""

    def replace(self, items: Sequence[Object], _version: str) -> None:
        if self.num_refused_lists:
            self.num_refused_lists -= 1
            raise RuntimeError("no room for a list")
        self.lists.append([item["metadata"]["name"] for item in items])
        self.names = set(self.lists[-1])

    def apply(self, item: Object) -> None:
        if item["metadata"]["name"] == self.refused:
            raise KeyError(f"no place for {self.refused}")
        self.names.add(item["metadata"]["name"])

    def delete(self, item: Object) -> None:
        self.names.discard(item["metadata"]["name"])


class Followed:
    """A watch that follows a fake API server."""

    def __init__(self, api: FakeApiServer, session: aiohttp.ClientSession, token_file: Path) -> None:
        self.api = api
        self.sink = Recorded()
        self.token_file = token_file
        self.runner = make_runner(api)
        self.num_refusals = 0
        """How often the watch has called `on_refused`."""
        self.num_lives = 0
        """How often the watch has called `on_life`."""
        self.num_failures = 0
        """How often the watch has called `on_failure`."""
        self.port = 0
        self.task: asyncio.Task[None]
        self._session = session

    async def serve(self) -> None:
        self.runner = make_runner(self.api)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]

    def follow(self, source: Source = PODS) -> None:
        access = ClusterAccess(f"http://127.0.0.1:{self.port}", None, token_file=self.token_file)
        follower = Watch(
            Connection(self._session, access),
            source,
            self.sink,
            max_backoff_seconds=0.05,
            on_refused=self._count_refusal,
            on_life=self._count_life,
            on_failure=self._count_failure,
        )
        self.task = asyncio.create_task(follower.run())

    def _count_life(self) -> None:
        self.num_lives += 1

    def _count_failure(self) -> None:
        self.num_failures += 1

    def _count_refusal(self) -> None:
        self.num_refusals += 1

    def put(self, name: str) -> None:
        self.api.put(PODS.path, make_item(name))

    async def until(self, condition: Any) -> None:
        await wait_until_async("the watch as awaited", lambda: self.task.done() or condition())
        if self.task.done():
            self.task.result()

    async def until_named(self, *names: str) -> None:
        await self.until(lambda: self.sink.names == set(names))

    async def until_streaming(self) -> None:
        await self.until(lambda: self.api.num_streams(PODS.path))

    async def until_streaming_anew(self, num_watches: int) -> None:
        """Wait for the stream that follows so many watches."""
        await self.until(lambda: self.num_watches > num_watches)
        await self.until_streaming()

    async def cut(self) -> None:
        """Break the stream, and wait for the next one."""
        num_watches = self.num_watches
        self.api.cut(PODS.path)
        await self.until_streaming_anew(num_watches)

    @property
    def num_lists(self) -> int:
        return len(self.api.requests) - self.num_watches

    @property
    def num_watches(self) -> int:
        return len([request for request in self.api.requests if "watch" in request])


def make_item(name: str) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}}


def make_runner(api: FakeApiServer) -> web.AppRunner:
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    return web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)


@pytest_asyncio.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    async with aiohttp.ClientSession(headers={"User-Agent": "reader"}) as session:
        found = Followed(FakeApiServer(), session, token_file)
        await found.serve()
        yield found
        found.task.cancel()
        with suppress(asyncio.CancelledError):
            await found.task
        await found.runner.cleanup()


@pytest.fixture
def num_failures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The failures in a row at each pause. No pause takes time."""
    found: list[int] = []

    def note(count: int, _draw: float, _most: float) -> float:
        found.append(count)
        return 0.0

    monkeypatch.setattr(watch, "backoff_seconds", note)
    return found
