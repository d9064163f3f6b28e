"""The watch against an API server that misbehaves."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway import watch
from millrace_gateway.credentials import ClusterAccess
from millrace_gateway.objects import Key
from millrace_gateway.server import REPLICAS, SERVICES, Gateway
from millrace_gateway.settings import Settings
from tests.gateway.api_server import FakeApiServer
from tests.gateway.conftest import make_pod, make_service


class Followed:
    """A gateway that follows a fake API server."""

    def __init__(self, api: FakeApiServer, gateway: Gateway, runner: web.AppRunner, token_file: Path) -> None:
        self.api = api
        self.gateway = gateway
        self.runner = runner
        self.token_file = token_file
        self.port = 0
        self.task: asyncio.Task[None]

    async def serve(self) -> None:
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]

    def follow(self) -> None:
        access = ClusterAccess(f"http://127.0.0.1:{self.port}", None, token_file=self.token_file)
        self.task = asyncio.create_task(self.gateway.follow(access))

    def names(self) -> set[str]:
        return {key.name for key in self.gateway.catalogue.keys}

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)
                if self.task.done():
                    self.task.result()

    async def until_streaming(self) -> None:
        await self.until(lambda: self.api.num_streams(SERVICES.path) and self.api.num_streams(REPLICAS.path))


def make_runner(api: FakeApiServer) -> web.AppRunner:
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    return web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)


@pytest_asyncio.fixture
async def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    monkeypatch.setattr(watch, "MAX_BACKOFF_SECONDS", 0.05)
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    api = FakeApiServer()
    runner = make_runner(api)
    await runner.setup()
    found = Followed(api, Gateway(Settings("127.0.0.1", 0)), runner, token_file)
    await found.serve()
    yield found
    found.task.cancel()
    with suppress(asyncio.CancelledError):
        await found.task
    await found.runner.cleanup()


async def test_lists_then_follows(followed: Followed) -> None:
    api, catalogue = followed.api, followed.gateway.catalogue
    api.put(SERVICES.path, make_service("a", "one"))
    followed.follow()
    assert not followed.gateway.lifecycle.is_synced
    await followed.until_streaming()
    assert followed.gateway.lifecycle.is_synced
    assert followed.names() == {"one"}
    api.put(SERVICES.path, make_service("a", "two"))
    api.put(REPLICAS.path, make_pod("a", "two", "p1"))
    await followed.until(lambda: catalogue.find(Key("a", "two")))
    await followed.until(lambda: catalogue.ready_replicas(catalogue.find(Key("a", "two"))))
    api.remove(REPLICAS.path, make_pod("a", "two", "p1"))
    api.remove(SERVICES.path, make_service("a", "one"))
    await followed.until(lambda: followed.names() == {"two"})
    await followed.until(lambda: not catalogue.ready_replicas(catalogue.find(Key("a", "two"))))
    selectors = {r["path"]: r.get("labelSelector") for r in api.requests}
    assert selectors == {SERVICES.path: None, REPLICAS.path: "millrace.dev/component=replica"}


async def test_long_lists_come_in_pages(followed: Followed) -> None:
    followed.api.page_size = 2
    for number in range(5):
        followed.api.put(SERVICES.path, make_service("a", f"s{number}"))
    followed.follow()
    await followed.until_streaming()
    assert len(followed.names()) == 5


async def test_an_expired_version_lists_again(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.objects[SERVICES.path]["u"] = make_service("a", "missed")  # an event that never came
    followed.api.expire(SERVICES.path)
    await followed.until(lambda: followed.names() == {"missed"})
    await followed.until_streaming()


async def test_a_410_answer_lists_again(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.objects[SERVICES.path]["u"] = make_service("a", "missed")
    followed.api.failures = [410]
    followed.api.cut(SERVICES.path)
    await followed.until(lambda: followed.names() == {"missed"})


async def test_a_cut_stream_goes_on_where_it_was(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    api = followed.api
    api.put(SERVICES.path, make_service("a", "one"))
    api.send(SERVICES.path, "BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    api.send_raw(SERVICES.path, b'{"type": "ADDED", "object": {"met')  # half an event
    api.cut(SERVICES.path)
    await followed.until(lambda: followed.names() == {"one"})
    await followed.until(lambda: api.requests[-1].get("resourceVersion") == "77")
    await followed.until_streaming()
    lists = [r for r in api.requests if r["path"] == SERVICES.path and "watch" not in r]
    assert len(lists) == 1


async def test_an_event_of_any_length_in_any_pieces_is_read(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    item = make_service("a", "big")
    item["metadata"]["annotations"] = {"long": "x" * 300_000}
    line = json.dumps({"type": "ADDED", "object": item}).encode() + b"\n\n"
    for begin in range(0, len(line), 70_001):
        followed.api.send_raw(SERVICES.path, line[begin : begin + 70_001])
    await followed.until(lambda: followed.names() == {"big"})


async def test_while_the_api_server_is_down_the_last_known_stays(followed: Followed) -> None:
    followed.api.put(SERVICES.path, make_service("a", "one"))
    followed.follow()
    await followed.until_streaming()
    await followed.runner.cleanup()
    await asyncio.sleep(0.1)
    assert followed.names() == {"one"}
    assert followed.gateway.lifecycle.is_synced
    followed.runner = make_runner(followed.api)
    await followed.runner.setup()
    await followed.serve()
    await followed.until_streaming()
    followed.api.put(SERVICES.path, make_service("a", "two"))
    await followed.until(lambda: followed.names() == {"one", "two"})


async def test_refusals_and_nonsense_are_said_and_outlived(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.api.failures = [403, 500, 403]
    followed.api.put(SERVICES.path, make_service("a", "one"))
    followed.follow()
    await followed.until_streaming()
    assert "the API server answered 403: told to say 403" in caplog.text
    followed.api.send_raw(SERVICES.path, b'{"type": "ADDED", "object": {"metadata": 5}}\n')
    followed.api.send_raw(SERVICES.path, b"no json\n")
    await followed.until(lambda: "TypeError" in caplog.text)
    await followed.until_streaming()
    assert followed.names() == {"one"}


async def test_a_renewed_token_is_used(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.token_file.write_text("second")
    followed.api.cut(SERVICES.path)
    await followed.until(lambda: followed.api.tokens[-1] == "Bearer second")
    assert followed.api.tokens[0] == "Bearer first"


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_the_pause_grows_to_its_bound_and_is_spread(num_failures: int, draw: float) -> None:
    pause = watch.backoff_seconds(num_failures, draw)
    assert 0.1 <= pause <= watch.MAX_BACKOFF_SECONDS
    assert watch.backoff_seconds(num_failures + 1, draw) >= pause
    assert watch.backoff_seconds(num_failures, 0.0) * 2 >= pause
