"""The HTTP process's server, in this process, with its real signals, sockets and text worker."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from millrace_runtime.api import text_process
from millrace_runtime.api.app import create_app
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.settings import ApiSettings, ConnectionLimits
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.chat.worker_process import TextLimits
from millrace_runtime.replica import http_process
from millrace_runtime.replica.heartbeat import Heartbeat
from millrace_runtime.replica.http_process import serve
from tests.runtime.api.fake_engine import FakeEngine


async def test_a_text_worker_that_never_starts_ends_the_process_with_a_last_word(
    model_path: Path, tmp_path: Path
) -> None:
    ours, theirs = socket.socketpair()
    text = TextWorker(tmp_path, TextLimits(retry_seconds=(0.05,)))
    app = create_app(EngineClient(ours), text, Tokenizer.load(model_path), ApiSettings(served_name="tiny"))
    with theirs, socket.socket() as listener, contextlib.closing(Heartbeat.create(time.monotonic())) as beat:
        listener.bind(("127.0.0.1", 0))
        failure = await serve(app, ConnectionLimits(), listener, beat)
    assert failure == "the text worker does not start, tried 2 times; the log says why"


async def test_a_drain_lets_a_slow_reader_have_the_whole_of_its_answer(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_process, "_CLOSE_SECONDS", 0)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    engine = FakeEngine(theirs, [1])
    text = TextWorker(model_path, module=text_process.MODULE)
    app = create_app(EngineClient(ours), text, Tokenizer.load(model_path), ApiSettings(served_name="tiny"))
    with socket.socket() as listener, contextlib.closing(Heartbeat.create(time.monotonic())) as beat:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        running = asyncio.create_task(engine.run())
        serving = asyncio.create_task(serve(app, ConnectionLimits(), listener, beat))
        while app.state.replica.why_not_ready is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(sock=ask_for_much(listener.getsockname()), limit=4096)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert not serving.done()
        async with asyncio.timeout(10):
            assert len(await reader.readexactly(length)) == length
            assert await serving is None
        writer.close()
        await running


def ask_for_much(address: tuple[str, int]) -> socket.socket:
    """Ask for an answer that is larger than what the kernel keeps of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(address)
    body = json.dumps(
        {"prompt": [1], "n": 16, "max_tokens": 190, "logprobs": 20, "ignore_eos": True}
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    client.sendall(head + body)
    client.setblocking(False)
    return client
