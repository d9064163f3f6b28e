"""How far pods are with their models: asked over HTTP, told in steps, and forgotten."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from millrace_operator.controller import fetch_progress
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.fetch_progress import LONGEST_ANSWER, Fetches, read_answer
from millrace_operator.kube.kinds import ServiceKey
from millrace_operator.observed.snapshot import Fetched
from millrace_runtime import contract
from testing.world import KEY, make_pod, make_service
from tests.operator.status.test_causes import fetching

FETCHING = {"conditions": [{"type": "ModelReady", "status": "False", "reason": "Fetching"}]}
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


class Stage:
    """A pod that answers at 127.0.0.1, and what is kept of it."""

    def __init__(self) -> None:
        self.answer: Any = {"totalBytes": 1000, "doneBytes": 100, "bytesPerSecond": 10}
        self.now = 1000.0
        self.is_leader = True
        self.changed: list[ServiceKey] = []
        self.num_asked = 0
        self.cache = Cache()
        self.cache.put({**make_service(), "status": FETCHING})
        self.put_pod(RUNNING)
        self.fetches = Fetches(self.cache, self.changed.append, lambda: self.is_leader)

    def put_pod(self, state: dict[str, Any]) -> None:
        pod = make_pod(**fetching(state), podIP="127.0.0.1")
        self.cache.put(pod)

    async def respond(self, request: web.Request) -> web.Response:
        assert request.path == contract.PATH_PROGRESS
        self.num_asked += 1
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer)
        return web.json_response(self.answer)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stage.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    stage.fetches = Fetches(
        stage.cache, stage.changed.append, lambda: stage.is_leader, port=port, clock=lambda: stage.now
    )
    yield stage
    await runner.cleanup()


async def refresh(stage: Stage) -> Fetched | None:
    async with aiohttp.ClientSession() as session:
        await stage.fetches.refresh(session)
    return stage.fetches.read(KEY).get("chat-1")


async def test_a_pod_that_fetches_is_asked_and_its_service_is_looked_at(stage: Stage) -> None:
    assert await refresh(stage) == Fetched(1000, 100, 10)
    assert stage.changed == [KEY]


async def test_the_pod_of_a_job_that_fetches_for_all_is_asked_too(stage: Stage) -> None:
    stage.put_pod({"terminated": {"exitCode": 0}})
    pod = make_pod("chat-f-1", podIP="127.0.0.1")
    pod["metadata"]["labels"][contract.LABEL_COMPONENT] = contract.COMPONENT_FILLER
    pod["status"] = {"podIP": "127.0.0.1", "containerStatuses": [{"name": "fetch", "state": RUNNING}]}
    stage.cache.put(pod)
    assert await refresh(stage) is None
    assert stage.fetches.read(KEY) == {"chat-f-1": Fetched(1000, 100, 10)}


async def test_what_moves_little_is_told_after_a_while_and_what_moves_far_at_once(stage: Stage) -> None:
    await refresh(stage)
    stage.answer["doneBytes"], stage.now = 150, 1002.0
    assert (await refresh(stage), len(stage.changed)) == (Fetched(1000, 100, 10), 1)
    stage.now = 1031.0
    assert (await refresh(stage), len(stage.changed)) == (Fetched(1000, 150, 10), 2)
    stage.answer["doneBytes"], stage.now = 200, 1033.0
    assert (await refresh(stage), len(stage.changed)) == (Fetched(1000, 200, 10), 3)


async def test_a_pod_that_answers_no_more_keeps_what_it_told_until_it_loads(stage: Stage) -> None:
    told = await refresh(stage)
    stage.answer = b"<html>"
    assert await refresh(stage) == told
    stage.put_pod({"terminated": {"exitCode": 0}})
    assert await refresh(stage) is None


async def test_who_does_not_lead_asks_nobody_and_knows_nothing(stage: Stage) -> None:
    await refresh(stage)
    stage.is_leader = False
    assert (await refresh(stage), stage.num_asked) == (None, 1)


@pytest.mark.parametrize("reason", ["Loaded", "Loading", "Unschedulable", "Resolving", "RolledBack"])
async def test_a_pod_that_fetches_is_asked_whatever_its_service_says(stage: Stage, reason: str) -> None:
    condition = {"type": "ModelReady", "status": "True", "reason": reason}
    stage.cache.put({**make_service(), "status": {"conditions": [condition]}})
    assert await refresh(stage) == Fetched(1000, 100, 10)


async def test_pods_that_keep_silent_keep_nobody_elses_answers_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_progress, "TIMEOUT", aiohttp.ClientTimeout(total=1.0))
    monkeypatch.setattr(fetch_progress, "MOST_AT_ONCE", 10)
    silent = [f"silent-{number:03}" for number in range(21)]
    for name in silent:
        stage.cache.put(make_pod(name, **fetching(RUNNING), podIP="127.0.0.2"))
    stage.cache.put(make_pod("zoo", **fetching(RUNNING), podIP="127.0.0.1"))
    num_silent, is_over = 0, asyncio.Event()

    async def keep_silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_silent
        num_silent += 1
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(keep_silent, "127.0.0.2", stage.fetches._port)
    async with aiohttp.ClientSession(timeout=fetch_progress.TIMEOUT) as session:
        await stage.fetches.refresh(session)
        assert set(stage.fetches.read(KEY)) == {"chat-1", "zoo"}
        assert num_silent == len(silent)
    is_over.set()
    server.close()
    await server.wait_closed()


async def test_a_service_whose_pods_fetch_nothing_is_not_asked(stage: Stage) -> None:
    stage.put_pod({"terminated": {"exitCode": 0}})
    await refresh(stage)
    assert stage.num_asked == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"totalBytes": 1, "doneBytes": 2, "bytesPerSecond": 0}',
        b'{"totalBytes": -1, "doneBytes": -2, "bytesPerSecond": 0}',
        b'{"totalBytes": "1", "doneBytes": 0, "bytesPerSecond": 0}',
        b'{"totalBytes": true, "doneBytes": 0, "bytesPerSecond": 0}',
        b'{"totalBytes": 1, "doneBytes": 1}',
        b'{"doneBytes": -1, "bytesPerSecond": 0}',
        b'{"totalBytes": 1e400, "doneBytes": 0, "bytesPerSecond": 0}',
        b"\xff",
        b"[" * LONGEST_ANSWER,
        (b'{"doneBytes":' * LONGEST_ANSWER)[:LONGEST_ANSWER],
    ],
)
def test_an_answer_that_cannot_be_so_is_none(text: bytes) -> None:
    assert read_answer(text) is None


async def test_another_size_is_told_at_once(stage: Stage) -> None:
    await refresh(stage)
    stage.now, stage.answer["totalBytes"] = 1001.0, 1001
    assert await refresh(stage) == Fetched(1001, 100, 10)


async def test_a_fetch_whose_size_nobody_knows_is_told_each_half_minute(stage: Stage) -> None:
    del stage.answer["totalBytes"]
    assert await refresh(stage) == Fetched(None, 100, 10)
    stage.answer["doneBytes"], stage.now = 10**12, 1029.0
    assert await refresh(stage) == Fetched(None, 100, 10)
    stage.now = 1030.0
    assert await refresh(stage) == Fetched(None, 10**12, 10)
    assert len(stage.changed) == 2
    stage.answer["totalBytes"], stage.now = 2 * 10**12, 1032.0
    assert await refresh(stage) == Fetched(2 * 10**12, 10**12, 10), "now it is known"


@asynccontextmanager
async def beside(stage: Stage, answer: bytes) -> AsyncIterator[None]:
    """Have a pod of the same service at 127.0.0.2 that answers so."""

    async def respond(_: web.Request) -> web.Response:
        return web.Response(body=answer)

    stage.cache.put(make_pod("beside", **fetching(RUNNING), podIP="127.0.0.2"))
    app = web.Application()
    app.router.add_get(contract.PATH_PROGRESS, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.2", stage.fetches._port).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def test_an_answer_too_deep_to_be_read_keeps_no_other_pod_from_being_told_of(stage: Stage) -> None:
    async with beside(stage, b"[" * LONGEST_ANSWER):
        assert await refresh(stage) == Fetched(1000, 100, 10)
    assert set(stage.fetches.read(KEY)) == {"chat-1"}
