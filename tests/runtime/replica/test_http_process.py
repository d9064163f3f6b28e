"""The HTTP process's server, in this process, with its real signals, sockets and text worker."""

import contextlib
import socket
import time
from pathlib import Path

from millrace_runtime.api.app import create_app
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.settings import ApiSettings, ConnectionLimits
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.chat.worker_process import TextLimits
from millrace_runtime.replica.heartbeat import Heartbeat
from millrace_runtime.replica.http_process import serve


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
