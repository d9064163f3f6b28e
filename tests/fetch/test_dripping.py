"""Sources that send a few bytes now and then: they are never silent, and a model would never come."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import aiohttp
import pytest
from aiohttp import web

from millrace_fetch.cli.remote_model import fetch_head
from millrace_fetch.errors import UnavailableError
from millrace_fetch.sources import s3
from millrace_fetch.transfer import client, download, stall
from millrace_fetch.transfer.partial_file import PartFile
from millrace_fetch.transfer.ranges import Span
from millrace_fetch.transfer.retry import give_up
from millrace_fetch.transfer.stall import Pace
from testing.model_sources.s3_server import ACCOUNT, S3Server, running_moto
from testing.model_sources.servers import FakeHub, Files, WebFolderServer
from tests.fetch.conftest import SHARDS, Fetcher, make_model

GIVEN_UP = r"fewer than 1000 bytes/s for .* s, 6 times in a row; the next run continues from here"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience of some hundredths of a second."""
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 0.04)


@pytest.fixture
def contents() -> dict[str, bytes]:
    return make_model(5000)


def let_drip(files: Files) -> None:
    files.chunk_bytes, files.bytes_per_second = 1, 100


def let_run(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.chunk_bytes, files.bytes_per_second = 1 << 18, None
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 60.0)  # a busy machine is no slow source


async def test_a_source_that_drips_is_given_up_by_name_and_gone_on_from(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_drip(hub.large)
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match=GIVEN_UP) as caught:
            await fetcher.fetch("hf://org/m")
    assert str(caught.value).startswith(f"{hub.large_host}/")
    assert "secret" not in "".join([str(caught.value), *fetcher.witness.said])
    let_run(hub.large, monkeypatch)
    hub.large.ranges.clear()
    await fetcher.fetch("hf://org/m")
    fetcher.check(hub.files.contents)
    assert all(begin > 0 for _, begin, _ in hub.large.ranges)


async def test_all_connections_that_bring_too_little_together_end_the_fetch_and_it_is_gone_on_with(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 60.0)
    monkeypatch.setattr(stall, "STANDSTILL_SECONDS", 0.04)
    monkeypatch.setattr(download, "TICK_SECONDS", 0.01)
    let_drip(hub.large)
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="all connections together were slower than 64 KiB/s"):
            await fetcher.fetch("hf://org/m")
    monkeypatch.setattr(stall, "STANDSTILL_SECONDS", 120.0)
    let_run(hub.large, monkeypatch)
    await fetcher.fetch("hf://org/m")
    fetcher.check(hub.files.contents)


async def test_a_slow_server_without_parts_is_waited_for_connection_by_connection(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 60.0)
    monkeypatch.setattr(stall, "STANDSTILL_SECONDS", 0.04)
    monkeypatch.setattr(download, "TICK_SECONDS", 0.01)
    files = folder_server.files
    files.has_ranges, files.chunk_bytes, files.bytes_per_second = False, 200, 20_000
    await fetcher.fetch(folder_server.uri)
    fetcher.check(files.contents)
    given_up = give_up(UnavailableError("host: slow"), is_kept=False)
    assert str(given_up).endswith(
        "in a row; the next run continues from the beginning, because the server sends files only whole"
    )


async def test_a_hash_that_takes_long_makes_no_slow_source_of_those_who_wait_for_it(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "STANDSTILL_SECONDS", 0.2)
    monkeypatch.setattr(download, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(download, "REQUEST_BYTES", 1000)
    is_hashed, note = threading.Event(), PartFile.note

    def note_slowly(part: PartFile, span: Span) -> None:
        is_hashed.wait(10)
        note(part, span)

    monkeypatch.setattr(PartFile, "note", note_slowly)
    fetching = asyncio.create_task(fetcher.fetch("hf://org/m"))
    for _ in range(50):
        await asyncio.sleep(download.TICK_SECONDS)
    is_hashed.set()
    await fetching
    fetcher.check(hub.files.contents)


async def test_a_source_that_asks_for_quiet_does_not_stand_still(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 60.0)
    monkeypatch.setattr(stall, "STANDSTILL_SECONDS", 0.2)
    monkeypatch.setattr(download, "TICK_SECONDS", 0.01)
    paused: list[float] = []

    async def pause(error: UnavailableError, *_: object) -> None:
        paused.append(error.retry_after_seconds or 0.0)
        await asyncio.sleep(0.05)

    monkeypatch.setattr(download, "pause", pause)
    answers = [web.Response(status=429, headers={"Retry-After": "1"}) for _ in range(8)]
    hub.large.faults.append(lambda _: answers.pop() if answers else None)
    await fetcher.fetch("hf://org/m")
    assert set(paused) == {1.0}


async def test_a_connection_that_drips_is_made_anew(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_drip(hub.large)
    say = fetcher.witness.say

    def say_and_mend(text: str) -> None:
        say(text)
        let_run(hub.large, monkeypatch)

    fetcher.witness.say = say_and_mend  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await fetcher.fetch("hf://org/m")
    fetcher.check(hub.files.contents)
    assert "fewer than 1000 bytes/s" in fetcher.witness.said[0]


@pytest.mark.parametrize("silent_seconds", [0.0, 1.0])
async def test_a_byte_and_then_nothing_more_is_given_up(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, silent_seconds: float
) -> None:
    monkeypatch.setattr(client, "_TIMEOUT", aiohttp.ClientTimeout(total=None, sock_read=0.05))
    hub.large.break_bytes, hub.large.silent_seconds = 1, silent_seconds
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="6 times in a row; the next run"):
            await fetcher.fetch("hf://org/m")


async def test_a_connection_that_is_cut_again_and_again_is_gone_on_with(
    fetcher: Fetcher, hub: FakeHub, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 60.0)
    hub.large.become(contents := contents | {SHARDS[0]: bytes(100_000)})
    hub.files.become(contents)
    hub.large.break_bytes = 2000
    await fetcher.fetch("hf://org/m")
    fetcher.check(contents)
    assert len(fetcher.witness.said) > 48


async def test_a_list_that_drips_is_given_up(fetcher: Fetcher, folder_server: WebFolderServer) -> None:
    let_drip(folder_server.files)
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match=f"index.json: {GIVEN_UP}"):
            await fetcher.fetch(folder_server.uri)


async def test_headers_that_drip_are_given_up(fetcher: Fetcher, hub: FakeHub) -> None:
    let_drip(hub.large)
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match=GIVEN_UP):
            await fetch_head(fetcher.hub_source(), fetcher.witness.say)


OK, REFUSED = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 403 Forbidden\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5;x="
NEVER_SILENT = {
    "headers": (OK + b"X-Slow: ", b"a"),
    "answers that announce one": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "a chunk's extension": (OK + CHUNKED, b"a"),
    "a refusal's": (REFUSED + CHUNKED, b"a"),
}
"""What an answer begins with, and what comes again and again: never a byte of the body."""


@asynccontextmanager
async def dripping_server(begins: bytes, drop: bytes) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begins)
        with suppress(OSError), closing(writer):  # until it is given up
            while True:
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as group:
        server = await asyncio.start_server(lambda *ends: group.create_task(answer(*ends)), "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            yield f"http://{host}:{port}"


@pytest.mark.parametrize("drips", NEVER_SILENT)
async def test_a_server_that_sends_all_but_a_body_is_given_up(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, drips: str
) -> None:
    monkeypatch.setattr(client, "LONGEST_WAIT_SECONDS", 0.05)
    async with dripping_server(*NEVER_SILENT[drips]) as fetcher.endpoint, asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="no answer in time, 6 times in a row; the next run"):
            await fetcher.fetch("hf://org/m")


async def test_who_waits_for_a_free_connection_does_not_wait_for_the_server(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, source = f"{folder_server.uri}/{SHARDS[0]}", fetcher.open_source(fetcher.order(folder_server.uri))
    folder_server.files.chunk_bytes, folder_server.files.bytes_per_second = 100, 1e4

    async def ask() -> int:
        async with one.request("GET", url) as response:
            return response.status

    async with client.Client(source.authorize, connections=1) as one:
        async with one.request("GET", url):
            monkeypatch.setattr(client, "LONGEST_WAIT_SECONDS", 0.05)
            waiting = asyncio.create_task(ask())
            await asyncio.sleep(0.2)
            monkeypatch.setattr(client, "LONGEST_WAIT_SECONDS", 60.0)
            assert not waiting.done()
        assert await waiting == 200


async def test_a_bucket_whose_list_drips_is_given_up(
    fetcher: Fetcher, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    monkeypatch.setattr(s3, "PAGE_SECONDS", 0.1)
    for name, value in (ACCOUNT | {"AWS_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    with running_moto() as bucket:
        bucket.fill(contents)
        async with S3Server(bucket.endpoint) as server, asyncio.timeout(10):
            server.faults.append(lambda _: web.Response(body=drip(), content_type="application/xml"))
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
            with pytest.raises(UnavailableError, match=f"{server.endpoint}: no page .* 6 times in a row"):
                await fetcher.fetch("s3://models/org/m")
    assert SHARDS[0] not in fetcher.names()


@pytest.mark.parametrize(
    ("num_bytes", "seconds", "expected"),
    [
        (1, 0.001, False),  # closed at once
        (1, 60.0, False),  # silent
        (59_999, 60.0, False),
        (60_000, 600.0, True),
        (1000, 0.001, True),
        (1 << 20, 3.0, True),
        (2999, 3.0, False),
        (3000, 3.0, True),
        (0, 0.0, False),
    ],
)
def test_a_try_is_progress_by_what_it_brought(
    num_bytes: int, seconds: float, monkeypatch: pytest.MonkeyPatch, *, expected: bool
) -> None:
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 60.0)
    assert stall.is_progress(num_bytes, seconds) is expected


def test_a_window_is_of_the_time_that_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "WINDOW_SECONDS", 60)
    steady, slow, stuck = Pace(), Pace(), Pace()
    assert [steady.add(60_000, 30.0) for _ in range(6)] == [False] * 6
    assert [slow.add(29_000, 30.0) for _ in range(4)] == [False, True, False, True]
    assert [stuck.add(num_bytes, 59.0) for num_bytes in (10**9, 1, 1, 1)] == [False, False, False, True]
    assert not any(Pace().add(1, 1e-6) for _ in range(1000))
