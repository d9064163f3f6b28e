"""A replica with a fake engine, on a real port."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn

from millrace_runtime.api.app import create_app
from millrace_runtime.api.connection.server import server_config
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.grammar_worker import GrammarWorker
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.settings import GRAMMAR_MODULE, TEXT_MODULE, ApiSettings, ConnectionLimits
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.chat.worker_process import TextLimits
from testing.polling import wait_until_async
from tests.runtime.api.fake_engine import FakeEngine

REPLY = "the stöp 😀 ends"
PROOF_SECONDS = (0.05, 0.15)
MUCH = {"prompt": ["a"] * 8, "n": 16, "max_tokens": 190, "ignore_eos": True, "logprobs": 20}
"""Asks for 128 sequences and more bytes than the kernel keeps of an answer that nobody reads."""


@dataclass
class Served:
    """A replica on a real port of the loopback interface, with a fake engine."""

    engine: FakeEngine
    engine_task: "asyncio.Task[None]"
    replica: ReplicaState
    client: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    async def until(self, condition: Callable[[], Any]) -> None:
        await wait_until_async("the replica as awaited", condition)

    async def metric(self, name: str, **labels: str) -> float:
        return sum_samples((await self.client.get("/metrics")).text, name, **labels)


def sum_samples(scrape: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = scrape.splitlines()
    found = [line for line in lines if line.startswith(name + "{") and all(w in line for w in wanted)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@contextlib.asynccontextmanager
async def serve(
    model_path: Path,
    settings: ApiSettings,
    *,
    limits: ConnectionLimits | None = None,
    is_loading: bool = False,
    job_seconds: float = 3.0,
) -> AsyncIterator[Served]:
    tokenizer = Tokenizer.load(model_path)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    [reply] = tokenizer.encode_batch([REPLY], add_special_tokens=False)
    engine = FakeEngine(theirs, [*reply, *tokenizer.end_token_ids], is_loading=is_loading)
    text = TextWorker(model_path, TextLimits(job_seconds=job_seconds, memory_bytes=1 << 30), TEXT_MODULE)
    grammars = GrammarWorker(model_path, GRAMMAR_MODULE, PROOF_SECONDS)
    app = create_app(EngineClient(ours), text, grammars, tokenizer, settings)
    server = uvicorn.Server(server_config(app, limits or ConnectionLimits(), graceful_seconds=1))
    server.install_signal_handlers = lambda: None
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    serving = asyncio.create_task(server._serve([sock]))
    engine_task = asyncio.create_task(engine.run())
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        api = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        served = Served(engine, engine_task, app.state.replica, client, api)
        try:
            await served.until(lambda: server.started)
            if not is_loading:
                await served.until(lambda: served.replica.why_not_ready is None)
            yield served
        finally:
            await api.close()
            server.should_exit = True
            await serving
            engine_task.cancel()
            await asyncio.gather(engine_task, return_exceptions=True)
            sock.close()
