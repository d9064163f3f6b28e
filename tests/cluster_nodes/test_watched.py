"""A watched collection whose `on_change` fails, against an API server that tells each change once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from e2e.cluster.nodes.kube import Watched
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.collection import Object
from millrace_kubernetes.connection import Connection
from testing.api_server import FakeApiServer
from testing.polling import wait_until_async
from tests.kubernetes.conftest import make_item, make_runner

pytestmark = pytest.mark.reads(
    "e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes", "tests/kubernetes"
)

PODS = "/api/v1/pods"


class Unsteady:
    """An `on_change` that fails at some objects."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        """The names of objects that it fails at."""
        self.num_failures = 0
        self.taken: list[tuple[str, bool]] = []
        """Each change that it took: an object's name, and whether the object is there."""

    def note(self, old: Object | None, new: Object | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        if name in self.refused:
            self.num_failures += 1
            raise RuntimeError(f"no room for {name}")
        self.taken.append((name, new is not None))


class Bench:
    """A watched collection, the API server it follows and what it tells."""

    def __init__(self, api: FakeApiServer, connection: Connection) -> None:
        self.api = api
        self.unsteady = Unsteady()
        self.watched = Watched(connection, PODS, self.unsteady.note)

    def names(self) -> set[str]:
        return {item["metadata"]["name"] for item in self.watched.objects.values()}

    async def until_named(self, *names: str) -> None:
        await wait_until_async(f"the objects {names}", lambda: self.names() == set(names))

    async def until_failed(self, times: int = 1) -> None:
        before = self.unsteady.num_failures
        await wait_until_async("a failure", lambda: self.unsteady.num_failures >= before + times)

    async def until_streaming(self) -> None:
        await wait_until_async("the stream", lambda: self.api.num_streams(PODS))


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    api = FakeApiServer()
    runner = make_runner(api)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        found = Bench(api, Connection(session, ClusterAccess(url, None)))
        for name in ("a", "b"):
            api.put(PODS, make_item(name))
        task = asyncio.create_task(found.watched.run())
        yield found
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await runner.cleanup()


async def test_a_listed_object_that_fails_is_told_again_and_keeps_no_other_away(bench: Bench) -> None:
    bench.unsteady.refused = {"a"}
    await bench.until_failed(times=2)
    assert bench.names() == {"b"}
    assert bench.watched.is_listed.is_set()
    bench.unsteady.refused = set()
    await bench.until_named("a", "b")
    assert bench.unsteady.taken == [("b", True), ("a", True)]


@pytest.mark.parametrize("num_failures", [1, 3])
async def test_an_event_that_fails_is_told_again(bench: Bench, num_failures: int) -> None:
    await bench.until_streaming()
    bench.unsteady.refused = {"c"}
    bench.api.put(PODS, make_item("c"))
    await bench.until_failed(num_failures)
    bench.unsteady.refused = set()
    await bench.until_named("a", "b", "c")


async def test_a_removal_that_fails_is_told_again(bench: Bench) -> None:
    await bench.until_streaming()
    bench.unsteady.refused = {"a"}
    bench.api.remove(PODS, make_item("a"))
    await bench.until_failed()
    bench.unsteady.refused = set()
    await bench.until_named("b")
    assert bench.unsteady.taken[2:] == [("a", False)]


async def test_a_removal_that_fails_keeps_no_other_object_away(bench: Bench) -> None:
    await bench.until_streaming()
    bench.unsteady.refused = {"a"}
    bench.api.remove(PODS, make_item("a"))
    bench.api.put(PODS, make_item("c"))
    await bench.until_named("a", "b", "c")
    await bench.until_failed()
    bench.unsteady.refused = set()
    await bench.until_named("b", "c")
