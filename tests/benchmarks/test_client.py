"""Completions from a server that streams, that fails in the stream, and that never brings a token."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.runtime import client
from benchmarks.runtime.client import Dialect, LlamaCpp, OpenAI
from benchmarks.runtime.engines import PORT, EngineSpec
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.starts import time_start
from benchmarks.runtime.workload import Completion

TOKEN = {"choices": [{"text": "a"}]}
SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.do_GET()
        for event in sys.argv[2:]:
            self.wfile.write(f"data: {event}\\n\\n".encode())

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@asynccontextmanager
async def serving(path: str, events: Sequence[dict[str, Any]], status: int = 200) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    application = web.Application()
    application.router.add_post(path, answer)
    async with TestServer(application) as server:
        yield str(server.make_url(""))


async def complete(dialect: Dialect, *events: dict[str, Any], status: int = 200) -> Completion:
    async with serving(dialect.path, events, status) as base:
        return (await client.complete_all(base, dialect, ["Once"], 3))[0]


async def test_the_usage_tells_how_many_tokens_there_were() -> None:
    found = await complete(OpenAI("m"), TOKEN, TOKEN, {"choices": [], "usage": {"completion_tokens": 5}})
    assert found.num_tokens == 5
    assert found.sent < found.first_token <= found.last_token


async def test_tokens_are_counted_and_those_of_the_first_event_by_themselves() -> None:
    found = await complete(LlamaCpp(), {"tokens": [7, 8]}, {"tokens": [9]})
    assert (found.num_tokens, found.num_first_tokens) == (3, 2)


async def test_an_error_in_the_stream_is_quoted() -> None:
    with pytest.raises(EngineError, match="out of memory"):
        await complete(OpenAI("m"), TOKEN, {"error": {"message": "out of memory"}})


async def test_a_stream_without_a_token_is_no_completion() -> None:
    with pytest.raises(EngineError, match="ended without a token"):
        await complete(OpenAI("m"), {"choices": []})


async def test_a_refusal_is_quoted() -> None:
    with pytest.raises(EngineError, match="answers 429: "):
        await complete(OpenAI("m"), {"detail": "full"}, status=429)


def start(folder: Path, *events: dict[str, Any]) -> float:
    command = (sys.executable, "-c", SERVER, PORT, *map(json.dumps, events))
    return time_start(EngineSpec("fake", "bf16", command, dialect=OpenAI("m")), folder)


def test_a_start_lasts_until_the_first_token(tmp_path: Path) -> None:
    assert 0 < start(tmp_path, TOKEN) < 60


@pytest.mark.usefixtures("dead_proxies")
def test_no_proxy_is_asked_for_an_engine(tmp_path: Path) -> None:
    assert 0 < start(tmp_path, TOKEN) < 60


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([], "ended without a token"),
        ([{"error": {"message": "no model"}}], "no model"),
        ([TOKEN, TOKEN], r"1 answers of \[2\] tokens instead of 1 of 1"),
    ],
    ids=["nothing", "an error", "two tokens"],
)
def test_a_start_that_brings_no_token_or_more_than_one_is_none(
    events: list[dict[str, Any]], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=fault):
        start(tmp_path, *events)
