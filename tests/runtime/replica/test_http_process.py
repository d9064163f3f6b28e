"""The HTTP process's server, in this process, with its real signals, sockets and text worker."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI

from millrace_runtime.api.app import create_app
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.settings import GRAMMAR_MODULE, TEXT_MODULE, ApiSettings, ConnectionLimits
from millrace_runtime.api.workers.grammar_worker import GrammarWorker
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.replica import http_process
from millrace_runtime.replica.heartbeat import Heartbeat, Member, Phase
from millrace_runtime.replica.http_process import serve
from testing.polling import wait_until_async
from tests.runtime.api.fake_engine import FakeEngine
from tests.runtime.api.served import MUCH


async def test_a_text_worker_that_never_starts_ends_the_process_with_a_last_word(
    model_path: Path, tmp_path: Path
) -> None:
    ours, theirs = socket.socketpair()
    text = TextWorker(tmp_path, TextLimits(retry_seconds=(0.05,)), TEXT_MODULE)
    grammars = GrammarWorker(tmp_path, GRAMMAR_MODULE)
    app = create_app(
        EngineClient(ours), text, grammars, Tokenizer.load(model_path), ApiSettings(served_name="tiny")
    )
    with theirs, socket.socket() as listener, contextlib.closing(Heartbeat.create(time.monotonic())) as beat:
        listener.bind(("127.0.0.1", 0))
        failure = await serve(app, ConnectionLimits(), listener, beat, 30)
    assert failure == "the text worker does not start, tried 2 times; the log says why"


async def test_a_text_worker_that_can_not_be_replaced_makes_the_replica_unready_and_ends_it(
    model_path: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(model_path, tmp_path / "model")
    async with serving_model(model) as process:
        (model / "tokenizer.json").unlink()
        kill_text_process()
        await until_ready(process.app, is_ready=False)
        assert not process.serving.done()
        assert await process.serving == "the text worker does not start, tried 2 times; the log says why"


async def test_who_waits_for_the_start_goes_on_behind_the_first_beat(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet asks the supervisor next, which knows of the start by that beat."""
    monkeypatch.setattr(http_process, "_START_POLL_SECONDS", 0.5)
    async with serving_model(model_path) as process:
        await process.app.state.replica.wait_started(30)
        assert process.heartbeat.read(Member.HTTP).phase is Phase.STEPPING
        os.kill(os.getpid(), signal.SIGTERM)
        assert await process.serving is None


@pytest.mark.parametrize("is_draining", [False, True])
async def test_a_text_worker_that_can_not_be_replaced_leaves_running_streams_whole(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_draining: bool
) -> None:
    monkeypatch.setattr(http_process, "_CLOSE_SECONDS", 0)
    model = shutil.copytree(model_path, tmp_path / "model")
    async with serving_model(model) as process:
        async with stream_a_little(process) as reader:
            if is_draining:
                os.kill(os.getpid(), signal.SIGTERM)
            (model / "tokenizer.json").unlink()
            kill_text_process()
            await process.app.state.replica.text.failure
            await until_ready(process.app, is_ready=False)
            await asyncio.sleep(0.3)
            assert not process.serving.done()
            process.engine.pauses_after = None
            assert (await reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert "does not start" in (await process.serving or "")


async def test_a_text_worker_that_can_not_be_replaced_ends_the_process_however_long_a_stream_takes(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_process, "_CLOSE_SECONDS", 0)
    model = shutil.copytree(model_path, tmp_path / "model")
    async with serving_model(model, drain_seconds=0.2) as process, stream_a_little(process):
        (model / "tokenizer.json").unlink()
        kill_text_process()
        assert "does not start" in (await process.serving or "")


@contextlib.asynccontextmanager
async def stream_a_little(process: "Process") -> AsyncIterator[asyncio.StreamReader]:
    """Ask for a stream whose engine pauses after two steps, and read its head."""
    process.engine.pauses_after = 2
    reader, writer = await asyncio.open_connection(*process.address)
    writer.write(render_request({"prompt": [1], "stream": True, "max_tokens": 50}))
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    yield reader
    writer.close()


@dataclass
class Process:
    """A ready replica's HTTP process, with a fake engine."""

    app: FastAPI
    engine: FakeEngine
    address: tuple[str, int]
    serving: "asyncio.Task[str | None]"
    """How it ends."""
    heartbeat: Heartbeat


@contextlib.asynccontextmanager
async def serving_model(model: Path, drain_seconds: float = 30) -> AsyncIterator[Process]:
    """Over within 30 s, whatever happens."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    text = TextWorker(model, TextLimits(retry_seconds=(1.0,)), TEXT_MODULE)
    grammars = GrammarWorker(model, GRAMMAR_MODULE)
    app = create_app(
        EngineClient(ours), text, grammars, Tokenizer.load(model), ApiSettings(served_name="tiny")
    )
    with socket.socket() as listener, contextlib.closing(Heartbeat.create(time.monotonic())) as beat:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        engine = FakeEngine(theirs, [1])
        stepping = asyncio.create_task(engine.run())
        serving = asyncio.create_task(serve(app, ConnectionLimits(), listener, beat, drain_seconds))
        try:
            async with asyncio.timeout(30):
                await until_ready(app, is_ready=True)
                yield Process(app, engine, listener.getsockname(), serving, beat)
        finally:
            serving.cancel()
            stepping.cancel()
            await asyncio.gather(serving, stepping, return_exceptions=True)


async def until_ready(app: FastAPI, *, is_ready: bool) -> None:
    replica = app.state.replica
    await wait_until_async(f"ready is {is_ready}", lambda: (replica.why_not_ready is None) == is_ready)


def kill_text_process() -> None:
    """Kill the child that tokenises, and not the server of forks: that one names the module too."""
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[2:3] == [TEXT_MODULE]:
                os.kill(int(pid), signal.SIGKILL)


async def test_a_drain_lets_a_slow_reader_have_the_whole_of_its_answer(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_process, "_CLOSE_SECONDS", 0)
    async with serving_model(model_path) as process:
        reader, writer = await asyncio.open_connection(sock=ask_for_much(process.address), limit=4096)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert not process.serving.done()
        assert len(await reader.readexactly(length)) == length
        assert await process.serving is None
        writer.close()


async def test_the_end_of_a_drain_leaves_a_client_that_is_still_sending_its_answer(model_path: Path) -> None:
    request = render_request({"prompt": "a" * 1_000_000})
    async with serving_model(model_path) as process:
        async with stream_a_little(process) as stream:
            os.kill(os.getpid(), signal.SIGTERM)
            await until_ready(process.app, is_ready=False)
            reader, writer = await asyncio.open_connection(*process.address)
            writer.write(request[:1000])
            assert b" 503 " in await reader.readuntil(b"\r\n")
            process.engine.pauses_after = None
            await stream.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            writer.write(request[1000:])
            await writer.drain()
            assert (await reader.read()).endswith(b"}}")
            writer.close()
        assert await process.serving is None


async def test_an_idle_connection_outlives_readiness_and_a_request_on_it_is_told(model_path: Path) -> None:
    request = render_request({"prompt": [1], "max_tokens": 1})
    async with serving_model(model_path) as process:
        reader, writer = await asyncio.open_connection(*process.address)
        writer.write(request)
        assert b"connection: close" not in await reader.readuntil(b"}}}")
        os.kill(os.getpid(), signal.SIGTERM)
        await until_ready(process.app, is_ready=False)
        await asyncio.wait({process.serving}, timeout=0.4)  # a server without requests ended in less
        writer.write(request)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nx-millrace-draining: 1\r\n" in answer
        assert answer.count(b"\r\nconnection: close\r\n") == 1
        assert await process.serving is None
        writer.close()


async def test_an_answer_that_begins_during_the_drain_says_that_the_connection_ends(
    model_path: Path,
) -> None:
    async with serving_model(model_path) as process:
        process.engine.pauses_after = 2
        reader, writer = await asyncio.open_connection(*process.address)
        writer.write(render_request({"prompt": [1], "max_tokens": 9}))
        await wait_until_async("two steps", lambda: process.engine.num_steps == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        await until_ready(process.app, is_ready=False)
        process.engine.pauses_after = None
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in answer
        began = time.monotonic()
        assert await process.serving is None
        assert time.monotonic() < began + http_process._FAREWELL_SECONDS  # nobody is left to wait for
        writer.close()


def ask_for_much(address: tuple[str, int]) -> socket.socket:
    """Ask for an answer that is larger than what the kernel keeps of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(address)
    client.sendall(render_request(MUCH))
    client.setblocking(False)
    return client


def render_request(body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content)
    return head + content
