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

from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.settings import ApiSettings, ConnectionLimits
from millrace_runtime.chat.tokenizer import Tokenizer
from testing.http_replica import serve_http
from testing.polling import wait_until_async
from tests.runtime.api.fake_engine import FakeEngine

REPLY = "the stöp 😀 ends"
PROOF_SECONDS = (0.05, 0.5)
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
    engine_task = asyncio.create_task(engine.run())
    try:
        async with (
            serve_http(
                model_path,
                ours,
                settings,
                limits=limits,
                job_seconds=job_seconds,
                proof_seconds=PROOF_SECONDS,
            ) as replica,
            httpx.AsyncClient(base_url=replica.url, timeout=20) as client,
            openai.AsyncOpenAI(base_url=replica.url + "/v1", api_key="none", max_retries=0) as api,
        ):
            if not is_loading:
                await replica.wait_ready()
            yield Served(engine, engine_task, replica.state, client, api)
    finally:
        engine_task.cancel()
        await asyncio.gather(engine_task, return_exceptions=True)
