"""What the end-to-end tests count as harm is seen: few tokens, another text, a window without a stream."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from e2e.ramp import Ramp
from testing.traffic import Load, Phase, Stream, Target, check_size

pytestmark = pytest.mark.reads(
    "e2e/cluster", "testing/polling.py", "e2e/ramp.py", "e2e/service.py", "testing/traffic.py", "examples"
)


def event(text: str = "", finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


@asynccontextmanager
async def server(*answers: list[dict[str, Any]]) -> AsyncIterator[Load]:
    """Give each request the next answer, and the last one for ever."""
    left = list(answers)

    async def complete(request: web.Request) -> web.StreamResponse:
        assert (await request.json())["stream_options"] == {"include_usage": True}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for one in left.pop(0) if len(left) > 1 else left[0]:
            await response.write(b"data: " + json.dumps(one).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield Load(Target(f"http://127.0.0.1:{runner.addresses[0][1]}", max_tokens=2))
    finally:
        await runner.cleanup()


WHOLE = [event("a"), event("b", "length"), usage(2)]


@pytest.mark.parametrize(
    "answer",
    [
        [event("a"), event("b", "length"), usage(1)],
        [event("a"), event("b", "length")],
        [event("a"), event("b", "stop"), usage(2)],
        [event("a"), event("b"), usage(2)],
        [],
    ],
)
async def test_a_stream_that_lacks_something_is_truncated(answer: list[dict[str, Any]]) -> None:
    async with server(answer) as load:
        streams = await load.run([Phase(0.05, 100.0)])
    assert streams
    assert all(stream.is_truncated for stream in streams)


async def test_a_whole_stream_is_not() -> None:
    async with server(WHOLE) as load:
        streams = await load.run([Phase(0.05, 100.0)])
        assert await load.find_altered(3) == []
    assert {(stream.text, stream.num_tokens, stream.is_truncated) for stream in streams} == {("ab", 2, False)}


async def test_another_text_than_alone_is_seen() -> None:
    async with server([event("x"), event("y", "length"), usage(2)], WHOLE) as load:
        streams = await load.run([Phase(0.05, 100.0)])
        assert [stream.number for stream in await load.find_altered(len(streams))] == [0]


async def test_a_load_ends_when_it_is_told() -> None:
    async with server(WHOLE) as load:
        load.end()
        assert await load.run([Phase(60.0, 1000.0)]) == []


def test_a_window_without_a_stream_does_not_meet_the_objective() -> None:
    load = Load(Target("http://127.0.0.1:1"))
    load.streams = [Stream(0, 2, sent=16.0, first_token=16.1), Stream(1, 2, sent=26.0, first_token=26.1)]
    assert Ramp(load, peak_at=15.0).recovery_seconds(15.0) == 10.0


@pytest.mark.parametrize(("seconds_late", "is_within"), [(0.1, True), (9.0, False)])
def test_the_objective_is_met_by_the_streams_of_late(seconds_late: float, is_within: bool) -> None:  # noqa: FBT001
    load = Load(Target("http://127.0.0.1:1"))
    load.began = time.monotonic() - 100.0
    assert not Ramp(load, peak_at=15.0).is_within_objective(50.0), "without a stream"
    load.streams = [
        Stream(0, 2, sent=20.0, first_token=60.0),
        Stream(1, 2, sent=90.0, first_token=90.0 + seconds_late),
        Stream(2, 2, sent=99.9),
    ]
    assert Ramp(load, peak_at=15.0).is_within_objective(50.0) == is_within


def test_a_load_that_would_end_early_is_refused() -> None:
    check_size([Phase(10.0, 5.0)])
    with pytest.raises(ValueError, match="66000 requests are more than 60000: make the load shorter"):
        check_size([Phase(60.0, 100.0), Phase(600.0, 100.0)])


def test_the_time_of_a_token_is_the_mean_after_the_first() -> None:
    whole = Stream(0, 11, sent=0.0, status=200, first_token=1.0, ended=2.0, num_tokens=11)
    assert whole.time_per_output_token == 0.1
    for lacking in ({"first_token": None}, {"ended": None}, {"num_tokens": None}, {"num_tokens": 1}):
        assert replace(whole, **lacking).time_per_output_token is None
