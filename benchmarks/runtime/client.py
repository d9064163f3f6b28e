"""Streams completions from a server and notes when their tokens came."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import aiohttp

from benchmarks.runtime.drivers.conversation import Progress
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.workload import Completion, read_completion
from testing.traffic import server_sent_events

REQUEST_SECONDS = 900.0
Prompt = list[int] | str


class Dialect(Protocol):
    """How a server is asked for an exact number of greedy tokens, and what its events say."""

    path: str

    def body(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        """Return the request's JSON."""

    def count_tokens(self, event: Mapping[str, Any]) -> int:
        """Return how many tokens an event brought: at least 1 where it brought any."""

    def read_tokens(self, event: Mapping[str, Any]) -> list[int]:
        """Return the token ids of an event, where the server was asked for them."""

    def read_total(self, event: Mapping[str, Any]) -> int | None:
        """Return how many tokens the whole stream had, from the event that says so."""


class OpenAI:
    """/v1/completions with vLLM's `ignore_eos`."""

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self._model = model

    def body(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        """Return the request's JSON."""
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def count_tokens(self, event: Mapping[str, Any]) -> int:
        """Return 1 for an event with text: the last event says how many tokens it holds."""
        return 1 if event.get("choices") else 0

    def read_tokens(self, event: Mapping[str, Any]) -> list[int]:
        """Return the token ids of an event: vLLM's `return_token_ids` asks for them."""
        return [token for choice in event.get("choices", ()) for token in choice.get("token_ids") or ()]

    def read_total(self, event: Mapping[str, Any]) -> int | None:
        """Return the usage's number."""
        usage = event.get("usage")
        return usage["completion_tokens"] if usage else None


class PlainOpenAI(OpenAI):
    """Without what is not OpenAI's own: it can't be asked for an exact number of tokens."""

    def body(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        """Return the request's JSON."""
        body = super().body(prompt, num_tokens)
        del body["ignore_eos"], body["stream_options"]
        return body


class WithFields(OpenAI):
    """Each request gets the next ones of some fields."""

    def __init__(self, model: str, fields: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(model)
        self._fields = itertools.cycle(fields)

    def body(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        """Return the request's JSON."""
        return super().body(prompt, num_tokens) | dict(next(self._fields))


class LlamaCpp:
    """llama.cpp's own /completion: of its dialects the one that takes token ids and returns them."""

    path = "/completion"

    def __init__(self, *, is_caching: bool = False) -> None:
        """`is_caching`: what a slot has computed of a prompt is used again."""
        self._is_caching = is_caching

    def body(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        """Return the request's JSON."""
        return {
            "prompt": prompt,
            "n_predict": num_tokens,
            "temperature": 0,
            "top_k": 1,
            "ignore_eos": True,
            "stream": True,
            "cache_prompt": self._is_caching,
            "return_tokens": True,
        }

    def count_tokens(self, event: Mapping[str, Any]) -> int:
        """Return the number of token ids."""
        return len(self.read_tokens(event))

    def read_tokens(self, event: Mapping[str, Any]) -> list[int]:
        """Return the token ids."""
        return event.get("tokens") or []

    def read_total(self, event: Mapping[str, Any]) -> int | None:
        """Return the last event's number."""
        return event.get("tokens_predicted") if event.get("stop") else None


def complete(base: str, dialect: Dialect, prompts: Sequence[Prompt], num_tokens: int) -> list[Completion]:
    """Send all prompts at once and await the ends of their streams. Raises EngineError."""
    try:
        return asyncio.run(complete_all(base, dialect, prompts, num_tokens))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"{base}{dialect.path} broke off: {error!r}") from error


async def complete_all(
    base: str, dialect: Dialect, prompts: Sequence[Prompt], num_tokens: int
) -> list[Completion]:
    """Do what `complete` does, in a running loop."""
    async with open_session(base) as session:
        streams = [_complete(session, dialect, dialect.body(prompt, num_tokens)) for prompt in prompts]
        return await asyncio.gather(*streams)


def open_session(base: str) -> aiohttp.ClientSession:
    """Return connections to a server, a new one for each request: llama.cpp closes those that it answered."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(base, timeout=timeout, connector=connector)


async def _complete(session: aiohttp.ClientSession, dialect: Dialect, body: dict[str, Any]) -> Completion:
    progress, total = Progress(time.perf_counter()), None
    async for event in read_events(session, dialect, body):
        progress.note(dialect.count_tokens(event), time.perf_counter())
        total = found if (found := dialect.read_total(event)) is not None else total
    completion = read_completion(progress.to_list())
    return completion if total is None else completion._replace(num_tokens=total)


async def read_events(
    session: aiohttp.ClientSession, dialect: Dialect, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Send a request and yield its events. Raises EngineError where it is refused or fails."""
    async with session.post(dialect.path, json=body) as response:
        if response.status != 200:
            raise EngineError(f"{dialect.path} answers {response.status}: {(await response.text())[:300]}")
        async for event in server_sent_events(response):
            if error := event.get("error"):
                raise EngineError(f"{dialect.path} breaks off: {json.dumps(error)[:300]}")
            yield event
