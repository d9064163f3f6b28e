"""The watch against an API server that misbehaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from e2e.polling import wait_until_async
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.collection import Object, Source
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.watch import MAX_BACKOFF_SECONDS, Watch, backoff_seconds
from tests.kubernetes.api_server import FakeApiServer

PODS = Source("/api/v1/pods", "app=web")


class Recorded:
    """A sink that keeps names, and fails where it is told to."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lists: list[list[str]] = []
        self.refused = ""
        """The name of objects that it fails at."""
        self.num_refused_lists = 0
        """How many lists it fails at next."""

    def replace(self, items: Sequence[Object]) -> None:
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
        self.port = 0
        self.task: asyncio.Task[None]
        self._session = session

    async def serve(self) -> None:
        self.runner = make_runner(self.api)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]

    def follow(self) -> None:
        access = ClusterAccess(f"http://127.0.0.1:{self.port}", None, token_file=self.token_file)
        watch = Watch(Connection(self._session, access), PODS, self.sink, max_backoff_seconds=0.05)
        self.task = asyncio.create_task(watch.run())

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


async def test_lists_then_follows(followed: Followed) -> None:
    followed.put("one")
    followed.follow()
    await followed.until_streaming()
    assert followed.sink.lists == [["one"]]
    followed.put("two")
    await followed.until_named("one", "two")
    followed.api.remove(PODS.path, make_item("one"))
    await followed.until_named("two")
    assert {request["labelSelector"] for request in followed.api.requests} == {"app=web"}
    assert set(followed.api.user_agents) == {"reader"}


async def test_long_lists_come_in_pages(followed: Followed) -> None:
    followed.api.page_size = 2
    for number in range(5):
        followed.put(f"s{number}")
    followed.follow()
    await followed.until_streaming()
    assert [len(names) for names in followed.sink.lists] == [5]


async def test_an_expired_version_lists_again(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.objects[PODS.path]["u"] = make_item("missed")  # an event that never came
    followed.api.expire(PODS.path)
    await followed.until_named("missed")
    await followed.until_streaming()


async def test_a_410_answer_lists_again(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.objects[PODS.path]["u"] = make_item("missed")
    followed.api.failures = [410]
    followed.api.cut(PODS.path)
    await followed.until_named("missed")


async def test_a_cut_stream_goes_on_where_it_was(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    api = followed.api
    followed.put("one")
    api.send(PODS.path, "BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    api.send_raw(PODS.path, b'{"type": "ADDED", "object": {"met')  # half an event
    api.cut(PODS.path)
    await followed.until_named("one")
    await followed.until(lambda: api.requests[-1].get("resourceVersion") == "77")
    await followed.until_streaming()
    assert len([request for request in api.requests if "watch" not in request]) == 1


async def test_an_event_of_any_length_in_any_pieces_is_read(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    item = make_item("big")
    item["metadata"] |= {"resourceVersion": "11", "annotations": {"long": "x" * 300_000}}
    line = json.dumps({"type": "ADDED", "object": item}).encode() + b"\n\n"
    for begin in range(0, len(line), 70_001):
        followed.api.send_raw(PODS.path, line[begin : begin + 70_001])
    await followed.until_named("big")


async def test_while_the_api_server_is_down_the_last_known_stays(followed: Followed) -> None:
    followed.put("one")
    followed.follow()
    await followed.until_streaming()
    await followed.runner.cleanup()
    await asyncio.sleep(0.1)
    assert followed.sink.names == {"one"}
    await followed.serve()
    await followed.until_streaming()
    followed.put("two")
    await followed.until_named("one", "two")


async def test_refusals_and_nonsense_are_said_and_outlived(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.api.failures = [403, 500, 403]
    followed.put("one")
    followed.follow()
    await followed.until_streaming()
    assert "the API server answered 403: told to say 403" in caplog.text
    followed.api.send_raw(PODS.path, b'{"type": "ADDED", "object": {"metadata": 5}}\n')
    await followed.until(lambda: "no event: TypeError" in caplog.text)
    await followed.until_streaming()
    followed.api.send_raw(PODS.path, b"no json\n")
    await followed.until(lambda: "no event: JSONDecodeError" in caplog.text)
    await followed.until_streaming()
    assert followed.sink.names == {"one"}


async def test_an_event_that_the_sink_fails_at_is_told_with_its_trace_and_passed_over(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.sink.refused = "bad"
    for name in ("bad", "good"):
        followed.put(name)
    await followed.until_named("good")
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "watching /api/v1/pods: the sink failed at ADDED of bad"
    followed.api.cut(PODS.path)
    await followed.until(lambda: followed.api.requests[-1].get("resourceVersion") == "12")
    await followed.until_streaming()
    assert caplog.text.count("the sink failed") == 1


async def test_a_list_that_the_sink_fails_at_is_told_with_its_trace_and_read_again(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.sink.num_refused_lists = 1
    followed.put("one")
    followed.follow()
    await followed.until_named("one")
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "watching /api/v1/pods: the sink failed at the list"


async def test_a_stream_that_ends_at_once_is_a_failure(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.finish(PODS.path)
    await followed.until(lambda: "the stream ended at once; again in" in caplog.text.replace("')", ""))
    await followed.until_streaming()


async def test_a_renewed_token_is_used(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.token_file.write_text("second")
    followed.api.cut(PODS.path)
    await followed.until(lambda: followed.api.tokens[-1] == "Bearer second")
    assert followed.api.tokens[0] == "Bearer first"


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_the_pause_grows_to_its_bound_and_is_spread(num_failures: int, draw: float) -> None:
    pause = backoff_seconds(num_failures, draw)
    assert 0.1 <= pause <= MAX_BACKOFF_SECONDS
    assert backoff_seconds(num_failures + 1, draw) >= pause
    assert backoff_seconds(num_failures, 0.0) * 2 >= pause
    assert backoff_seconds(num_failures, draw, most=1.0) == min(pause, 0.5 + draw / 2)
