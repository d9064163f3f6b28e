"""Clients that hold conversations through a gateway, in real time, and what they saw."""

import asyncio
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.gateway.ours import CLIENT_KEY
from benchmarks.routing.live.replicas import SERVICE
from benchmarks.routing.run import Load, Outcome
from benchmarks.routing.workload import Chats, Conversation, Writer
from millrace_runtime.contract import METRIC_RUNNING, METRIC_WAITING
from testing.traffic import percentile, server_sent_events

LOOK_SECONDS = 0.5
REQUEST_SECONDS = 300.0
_GAUGES = re.compile(rf"^(?:{METRIC_RUNNING}|{METRIC_WAITING})(?:{{[^}}]*}})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """One answered turn; times in seconds of `time.monotonic`."""

    sent_at: float
    first_token_at: float
    ended_at: float
    num_prompt_tokens: int
    num_found_tokens: int
    """Of the prompt: those that the replica's prefix cache had."""


class Run:
    """One load through one gateway."""

    def __init__(self, gateway: str, replicas: Sequence[str], chats: Chats, load: Load, seed: int) -> None:
        """`replicas` are the addresses where each has its metrics."""
        self._gateway = gateway
        self._replicas = replicas
        self._load = load
        self._writer = Writer(chats, seed)
        self._words = Words(seed)
        self._answers: list[Answer] = []
        self._loads: list[list[float]] = []
        """Requests at each replica, at each look after the warm-up."""

    async def run(self, warm_seconds: float) -> Outcome:
        """Hold conversations until the load's end; what begins in the first seconds does not count.

        Raises aiohttp.ClientError where a request fails.
        """
        began = time.monotonic()
        async with open_session(CLIENT_KEY) as session:
            try:
                async with asyncio.timeout(self._load.seconds), asyncio.TaskGroup() as group:
                    group.create_task(self._look(session, began + warm_seconds))
                    for _ in range(self._load.num_clients):
                        group.create_task(self._hold_for_ever(session))
                    if self._load.rate:
                        await self._begin(session, group)
            except TimeoutError:
                pass
        return self._conclude(began + warm_seconds, time.monotonic())

    async def _begin(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        began = time.monotonic()
        for at, conversation in self._writer.arrive(self._load.rate, self._load.seconds):
            await asyncio.sleep(began + at - time.monotonic())
            group.create_task(self._hold(session, conversation, thinks=True))

    async def _hold_for_ever(self, session: aiohttp.ClientSession) -> None:
        while True:
            await self._hold(session, self._writer.write(), thinks=False)

    async def _hold(
        self, session: aiohttp.ClientSession, conversation: Conversation, *, thinks: bool
    ) -> None:
        messages = [{"role": "system", "content": self._words.write_system(conversation)}]
        for (num_tokens, num_answer_tokens), think in zip(
            conversation.turns, conversation.thinks, strict=True
        ):
            await asyncio.sleep(think if thinks else 0)
            messages.append({"role": "user", "content": self._words.write(num_tokens)})
            self._answers.append(await ask(session, self._gateway, messages, num_answer_tokens))
            # Random weights say nothing that a tokenizer would read as the same tokens again.
            messages.append({"role": "assistant", "content": self._words.write(num_answer_tokens)})

    async def _look(self, session: aiohttp.ClientSession, since: float) -> None:
        await asyncio.sleep(since - time.monotonic())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._loads.append([await read_load(session, replica) for replica in self._replicas])

    def _conclude(self, since: float, until: float) -> Outcome:
        answers = [one for one in self._answers if one.sent_at >= since]
        ttfts = [one.first_token_at - one.sent_at for one in answers]
        means = [statistics.mean(loads) for loads in zip(*self._loads, strict=True)]
        return Outcome(
            mean_ttft=statistics.mean(ttfts),
            p95_ttft=percentile(ttfts, 95),
            requests_per_second=sum(1 for one in self._answers if one.ended_at >= since) / (until - since),
            found_share=sum(one.num_found_tokens for one in answers)
            / sum(one.num_prompt_tokens for one in answers),
            highest_load=max(means) / statistics.mean(means),
        )


def open_session(key: str) -> aiohttp.ClientSession:
    """Return a client's connections. It raises for an answer that is no success."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        raise_for_status=True,
    )


async def ask(
    session: aiohttp.ClientSession,
    gateway: str,
    messages: Sequence[dict[str, str]],
    num_tokens: int,
    on_first_token: Callable[[], None] = lambda: None,
) -> Answer:
    """Stream the answer to a chat. Raises aiohttp.ClientError."""
    sent_at, first_token_at = time.monotonic(), 0.0
    usage: dict[str, Any] = {}
    body = {
        "model": SERVICE,
        "messages": messages,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{gateway}/v1/chat/completions", json=body) as response:
        async for event in server_sent_events(response):
            has_token = event["choices"] and event["choices"][0]["delta"].get("content")
            if has_token and not first_token_at:
                first_token_at = time.monotonic()
                on_first_token()
            usage = event.get("usage") or usage
    ended_at = time.monotonic()
    found = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(sent_at, first_token_at or ended_at, ended_at, usage["prompt_tokens"], found)


async def read_load(session: aiohttp.ClientSession, replica: str) -> float:
    """Return the requests that wait or run at a replica."""
    async with session.get(f"{replica}/metrics") as response:
        return sum(float(value) for value in _GAUGES.findall(await response.text()))


class Words:
    """Writes texts of so many tokens. Those of a system prompt are always the same."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(seed)  # noqa: S311  a workload, no secret

    def write_system(self, conversation: Conversation) -> str:
        """Return the system prompt of a conversation."""
        rng = random.Random(f"{self._seed}-{conversation.system}")  # noqa: S311  a workload, no secret
        return _write(rng, conversation.system_tokens)

    def write(self, num_tokens: int) -> str:
        """Return a text that nobody wrote before."""
        return _write(self._rng, num_tokens)


def _write(rng: random.Random, num_tokens: int) -> str:
    # The model's tokenizer makes a token of each letter.
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=num_tokens))
