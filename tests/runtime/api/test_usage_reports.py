"""What a replica reports to the gateway of each answer's tokens, on the bytes of the connection."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millrace_runtime.api import usage
from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.api.usage import Usage, UsageReport
from millrace_runtime.contract import (
    HEADER_EARLY_REPORT,
    HEADER_REPORT,
    HEADER_USAGE,
    REPORT_USAGE,
    USAGE_EVENT,
)
from tests.runtime.api.served import Served, serve

REPORT = {HEADER_REPORT: REPORT_USAGE}
EARLY = REPORT | {HEADER_EARLY_REPORT: REPORT_USAGE}
HI = [{"role": "user", "content": "hi"}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": ["a", "abc"], "n": 3}),
    ("chat/completions", {"messages": HI, "n": 2}),
    ("responses", {"input": "hi"}),
    ("messages", {"messages": HI, "max_tokens": 9}),
]


@contextlib.asynccontextmanager
async def connect(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(served.client.base_url.host, served.client.base_url.port)
    yield reader, writer
    writer.close()


async def send(
    writer: asyncio.StreamWriter,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str],
    *,
    version: str = "1.1",
) -> None:
    content = json.dumps(body).encode()
    lines = [f"POST /v1/{path} HTTP/{version}", "Host: x", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
    await writer.drain()


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a stream, to its end or to that of the connection."""
    async with asyncio.timeout(20):
        assert b"\r\nx-millrace-usage:" not in await reader.readuntil(b"\r\n\r\n")
        while (line := await reader.readline()) and (size := int(line, 16)):
            yield (await reader.readexactly(size + 2))[:-2]


async def stream(served: Served, path: str, body: dict[str, Any], **headers: str) -> list[bytes]:
    async with connect(served) as (reader, writer):
        await send(writer, path, body | {"stream": True}, headers)
        return [chunk async for chunk in read_chunks(reader)]


def is_report(chunk: bytes) -> bool:
    return chunk.startswith(USAGE_EVENT)


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_a_whole_answer_and_a_stream_report_the_same(
    served: Served, path: str, body: dict[str, Any]
) -> None:
    served.engine.cached = [1, 0, 0, 2] if path == "completions" else [1]
    answer = await served.client.post(f"/v1/{path}", json=body, headers=REPORT)
    usage = answer.json()["usage"]
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    prompt += usage.get("cache_read_input_tokens", 0)  # Anthropic's input tokens are without these
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    cached = 3 if path == "completions" else 1
    assert answer.headers[HEADER_USAGE] == f"{prompt} {cached} {completion}"
    served.engine.cached = [1, 0, 0, 2] if path == "completions" else [1]
    chunks = await stream(served, path, body, **REPORT)
    *_, last = reports = [chunk for chunk in chunks if is_report(chunk)]
    assert last == chunks[-1] == USAGE_EVENT + answer.headers[HEADER_USAGE].encode() + b"\n\n"
    assert is_report(chunks[0])  # so that a client has no token that is not reported
    assert len(reports) >= 2
    assert not any(USAGE_EVENT in chunk for chunk in chunks if not is_report(chunk))


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_nothing_is_reported_to_a_client_that_does_not_ask(
    served: Served, path: str, body: dict[str, Any]
) -> None:
    assert not any(map(is_report, await stream(served, path, body)))
    answer = await served.client.post(f"/v1/{path}", json=body, headers={HEADER_REPORT: "other"})
    assert HEADER_USAGE not in answer.headers


def test_a_report_comes_with_the_first_token_and_then_four_times_a_second() -> None:
    report, usage = UsageReport(), Usage(5, 0)
    report.read_usage = lambda: usage
    assert report.poll(10.0) is None
    usage = Usage(5, 1, 3)
    times = [10.0 + step / 100 for step in range(100)]
    sent = [now for now in times if report.poll(now) is not None]
    assert sent == [10.0, 10.25, 10.5, 10.75]
    assert report.encode_event() == b": millrace-usage 5 3 1\n\n"


async def test_a_report_that_is_due_comes_ahead_of_its_token(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the stream's task sleeps, and the chunk leaves without it."""
    monkeypatch.setattr(usage, "USAGE_SECONDS", 0.0)
    served.engine.reply = served.engine.reply[:3]  # each has a text
    body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
    *chunks, _, _ = await stream(served, "completions", body, **REPORT)
    assert [is_report(chunk) for chunk in chunks] == [True, False] * (len(chunks) // 2)
    assert len(chunks) > 10


@pytest.mark.parametrize(
    ("headers", "version", "is_told"), [(EARLY, "1.1", True), (REPORT, "1.1", False), (EARLY, "1.0", False)]
)
@pytest.mark.parametrize("has_text", [True, False])
async def test_a_whole_answer_reports_before_it_begins_to_who_asks(
    served: Served,
    headers: dict[str, str],
    version: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_told: bool,
    has_text: bool,
) -> None:
    """Its client may leave just before it."""
    monkeypatch.setattr(usage, "USAGE_SECONDS", 0.0)
    if not has_text:
        served.engine.reply = [*served.replica.tokenizer.end_token_ids]
    body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
    async with connect(served) as (reader, writer), asyncio.timeout(20):
        await send(writer, "completions", body, headers, version=version)
        heads = []
        while not heads or b" 102 " in heads[-1]:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
    assert heads[-1].startswith(b"HTTP/1.1 200 ")
    told = [head.split()[-1] for head in heads[:-1]]
    assert told == ([b"1", b"2", b"3"] if is_told else [])


async def test_a_stream_reports_tokens_without_text(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "USAGE_SECONDS", 0.0)
    served.engine.reply = [served.engine.reply[0], *served.replica.tokenizer.end_token_ids * 9]
    body = {"prompt": "a", "max_tokens": 8, "ignore_eos": True}
    chunks = await stream(served, "completions", body, **REPORT)
    told = [int(chunk.split()[-1]) for chunk in chunks if is_report(chunk)]
    assert told == sorted(told)
    assert {*range(2, 9)} <= {*told}


async def test_what_a_client_has_read_is_no_longer_held(served: Served) -> None:
    served.engine.pauses_after = 50
    body = {"prompt": "a", "max_tokens": 99, "ignore_eos": True, "stream": True}
    async with connect(served) as (reader, writer):
        await send(writer, "completions", body, {})
        await served.until(lambda: served.engine.num_steps == 50)
        await reader.readuntil(b"data: ")
        await served.until(lambda: served.replica.admission.num_event_bytes < 200)


async def test_a_stream_that_fails_reports_last(served: Served) -> None:
    served.engine.pauses_after = 3
    async with connect(served) as (reader, writer):
        await send(writer, ASKED[1][0], ASKED[1][1] | {"stream": True}, REPORT)
        await served.until(lambda: served.engine.num_steps == 3)
        served.engine.fails_sequences, served.engine.pauses_after = True, None
        *_, error, report = [chunk async for chunk in read_chunks(reader)]
    assert b'"error"' in error
    assert report.split()[-1] == b"6"  # three of each choice


async def test_a_stream_that_the_replica_cuts_reports_last(model_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with serve(model_path, ApiSettings(served_name="tiny")) as ending:
            ending.engine.pauses_after = 3
            reader, writer = await stack.enter_async_context(connect(ending))
            await send(writer, ASKED[3][0], ASKED[3][1] | {"stream": True}, REPORT)
            await ending.until(lambda: ending.engine.num_steps == 3)
        *_, last = [chunk async for chunk in read_chunks(reader)]
    assert (is_report(last), last.split()[-1]) == (True, b"3")


async def test_an_answer_without_a_generation_used_nothing(served: Served) -> None:
    for path, body in (("/v1/completions", {"prompt": "a", "n": 129}), ("/tokenize", {"prompt": "a"})):
        answer = await served.client.post(path, json=body, headers=REPORT)
        assert answer.headers[HEADER_USAGE] == "0 0 0"


async def test_a_failed_whole_answer_reports_what_it_used(served: Served) -> None:
    served.engine.pauses_after = 3
    asking = asyncio.create_task(served.client.post("/v1/completions", json={"prompt": "a"}, headers=REPORT))
    await served.until(lambda: served.engine.num_steps == 3)
    served.engine.fails_sequences, served.engine.pauses_after = True, None
    answer = await asking
    assert (answer.status_code, answer.headers[HEADER_USAGE].split()[-1]) == (500, "3")
