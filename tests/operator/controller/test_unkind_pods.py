"""Pods that do not tell how far they are, but lead elsewhere, talk without end, or stay silent.

A pod is a tenant's, and so is what answers there. The operator asks it, and goes where it chose itself.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from millrace_operator.controller import fetch_progress
from testing.model_sources.servers import Server
from testing.world import KEY
from tests.operator.controller.test_fetch_progress import Stage, refresh

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOLD = b'{"totalBytes": 1000, "doneBytes": 100, "bytesPerSecond": 10}'


@asynccontextmanager
async def asking(answer: Answer) -> AsyncIterator[Stage]:
    """Have a pod that answers so."""
    async with Server(answer) as server:
        stage = Stage()
        port = int(server.url.rpartition(":")[2])
        stage.fetches = fetch_progress.Fetches(
            stage.cache, stage.changed.append, lambda: True, port=port, clock=lambda: stage.now
        )
        yield stage


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_pod_that_leads_elsewhere_is_not_followed(status: int) -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=TOLD)

    async with Server(elsewhere) as other:

        async def lead(_: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": f"{other.url}/progress"})

        async with asking(lead) as stage:
            assert await refresh(stage) is None
    assert asked == []


async def test_of_a_pod_that_talks_without_end_no_more_is_read_than_an_answer_has() -> None:
    """What is sent beyond it is what the sockets hold."""
    sent, is_over = 0, asyncio.Event()

    async def talk(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while sent < 1 << 30:
                await response.write(bytes(1 << 16))
                sent += 1 << 16
        finally:
            is_over.set()
        return response

    async with asking(talk) as stage, asyncio.timeout(5):
        assert await refresh(stage) is None
        await is_over.wait()
    assert sent < 32 << 20


@pytest.mark.parametrize("has_begun", [False, True], ids=["no answer", "no body"])
async def test_a_pod_that_stays_silent_is_waited_for_no_longer_than_its_time(
    monkeypatch: pytest.MonkeyPatch, *, has_begun: bool
) -> None:
    monkeypatch.setattr(fetch_progress, "TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    monkeypatch.setattr(fetch_progress, "PERIOD_SECONDS", 0.0)
    asked = asyncio.Queue[None]()
    is_kind = False

    async def stay_silent(request: web.Request) -> web.StreamResponse:
        asked.put_nowait(None)
        if is_kind:
            return web.Response(body=TOLD)
        response = web.StreamResponse()
        if has_begun:
            await response.prepare(request)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return response

    async with asking(stay_silent) as stage, asyncio.timeout(5):
        running = asyncio.create_task(stage.fetches.run())
        for _ in range(2):
            await asked.get()
        assert stage.fetches.read(KEY) == {}
        is_kind = True
        while not stage.fetches.read(KEY):
            await asked.get()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
