"""A replica's HTTP side on a port of the loopback interface: the real API and text worker, any engine."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import uvicorn

from millrace_runtime.api.app import create_app
from millrace_runtime.api.connection.server import build_server_config
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.settings import GRAMMAR_MODULE, TEXT_MODULE, ApiSettings, ConnectionLimits
from millrace_runtime.api.workers.grammar_worker import GrammarWorker
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.grammar.messages import PROOF_SECONDS
from testing.polling import wait_until_async


class HttpReplica(NamedTuple):
    """A replica that answers."""

    url: str
    state: ReplicaState

    async def wait_ready(self) -> None:
        """Wait until it accepts requests."""
        await wait_until_async("a ready replica", lambda: self.state.why_not_ready is None)


@contextlib.asynccontextmanager
async def serve_http(
    model_path: Path,
    engine: socket.socket,
    settings: ApiSettings,
    *,
    limits: ConnectionLimits | None = None,
    job_seconds: float = 3.0,
    proof_seconds: Sequence[float] = PROOF_SECONDS,
) -> AsyncIterator[HttpReplica]:
    """Serve until the context ends. `engine` is the socket to an engine, which need not be ready yet."""
    text = TextWorker(model_path, TextLimits(job_seconds=job_seconds, memory_bytes=1 << 30), TEXT_MODULE)
    grammars = GrammarWorker(model_path, GRAMMAR_MODULE, proof_seconds)
    app = create_app(EngineClient(engine), text, grammars, Tokenizer.load(model_path), settings)
    server = uvicorn.Server(build_server_config(app, limits or ConnectionLimits(), graceful_seconds=1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server._serve([listener]))
        try:
            await wait_until_async("a server that listens", lambda: server.started)
            yield HttpReplica(f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.replica)
        finally:
            server.should_exit = True
            await serving
