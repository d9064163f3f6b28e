"""Asks a replica over HTTP from several processes, so that the clients are not what is measured."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import aiohttp

from benchmarks.gpu.served.streams import Stream
from millrace_runtime.process import end_with_parent
from testing.traffic import server_sent_events

ASK_SECONDS = 60.0
PATH = "/v1/completions"


class Ask(NamedTuple):
    """A request to send."""

    body: dict[str, Any]
    cancel_seconds: float | None = None
    """When the client leaves; None: it stays until the end."""


class Beside(NamedTuple):
    """Streams, and those that decoded meanwhile."""

    others: list[Stream]
    asked: list[Stream]


class Asked:
    """Requests that are under way."""

    def __init__(self, parts: Sequence[Future[list[Stream]]]) -> None:
        self._parts = parts

    @property
    def is_over(self) -> bool:
        """Whether every stream has ended."""
        return all(part.done() for part in self._parts)

    def collect(self) -> list[Stream]:
        """Wait for the ends. Return all streams."""
        return [stream for part in self._parts for stream in part.result()]


class Clients:
    """Processes that ask."""

    def __init__(self, pool: ProcessPoolExecutor, num_processes: int) -> None:
        self._pool, self._num_processes = pool, num_processes

    def start(self, base: str, asks: Sequence[Ask]) -> Asked:
        """Send all requests at once, spread over the processes."""
        parts = [asks[number :: self._num_processes] for number in range(self._num_processes)]
        return Asked([self._pool.submit(ask_all, base, part) for part in parts if part])

    def ask(self, base: str, asks: Sequence[Ask]) -> list[Stream]:
        """Send all requests at once and wait for the ends of their streams."""
        return self.start(base, asks).collect()

    def ask_beside(self, base: str, others: Sequence[Ask], asks: Sequence[Ask]) -> Beside:
        """Start the others, then send requests one after the other, and cancel the others."""
        return self._pool.submit(ask_beside, base, others, asks).result()


@contextmanager
def open_clients(num_processes: int) -> Iterator[Clients]:
    """Start the processes, and end them afterwards. They end with this process, however it ends."""
    with ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), end_with_parent, (os.getpid(),)
    ) as pool:
        clients = Clients(pool, num_processes)
        starts = [pool.submit(ask_all, "", ()) for _ in range(num_processes)]
        Asked(starts).collect()
        yield clients


def ask_all(base: str, asks: Sequence[Ask]) -> list[Stream]:
    """Send all requests at once from this process."""
    return asyncio.run(_ask_all(base, asks))


def ask_beside(base: str, others: Sequence[Ask], asks: Sequence[Ask]) -> Beside:
    """Do what `Clients.ask_beside` does, from this process."""
    return asyncio.run(_ask_beside(base, others, asks))


async def _ask_all(base: str, asks: Sequence[Ask]) -> list[Stream]:
    async with _open_session() as session:
        running = [_Request(base + PATH, ask) for ask in asks]
        await asyncio.gather(*(request.run(session) for request in running))
        return [request.stream for request in running]


async def _ask_beside(base: str, others: Sequence[Ask], asks: Sequence[Ask]) -> Beside:
    async with _open_session() as session:
        running = [_Request(base + PATH, ask) for ask in others]
        tasks = [asyncio.create_task(request.run(session)) for request in running]
        await asyncio.gather(*(request.begun.wait() for request in running))
        asked = [_Request(base + PATH, ask) for ask in asks]
        for request in asked:
            await request.run(session)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        return Beside([request.stream for request in running], [request.stream for request in asked])


def _open_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))


class _Request:
    """A request and what comes of it."""

    def __init__(self, url: str, ask: Ask) -> None:
        self._url, self._ask = url, ask
        self.stream = Stream()
        self.begun = asyncio.Event()
        """Its first token is there, or it has ended."""

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Send it, and note its stream until the end, or until the task is cancelled."""
        stream = self.stream
        stream.sent = time.perf_counter()
        try:
            async with asyncio.timeout(self._ask.cancel_seconds):
                await self._read(session)
        except asyncio.CancelledError:
            stream.is_cancelled = True
        except TimeoutError:
            stream.is_cancelled = self._ask.cancel_seconds is not None
            stream.error = None if stream.is_cancelled else f"no end after {ASK_SECONDS:g} s"
        except aiohttp.ClientError as error:
            stream.error = repr(error)
        finally:
            self.begun.set()

    async def _read(self, session: aiohttp.ClientSession) -> None:
        async with session.post(self._url, json=self._ask.body) as response:
            if response.status != 200:
                self.stream.error = f"{response.status}: {(await response.text())[:300]}"
                return
            async for event in server_sent_events(response):
                self.stream.note(event, time.perf_counter())
                self.begun.set()
