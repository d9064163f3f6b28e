"""What a stream's reader is given: all that has come, in pieces that a write may have."""

import socket
from collections.abc import AsyncIterator

import pytest

from millrace_runtime.api.engine_client import EngineClient, EventStream
from millrace_runtime.api.errors import ClientGoneError, GenerationError
from millrace_runtime.protocol.messages import SequenceOutput
from tests.runtime.api.served import Served

EVENT = b"x" * 1000
MAX_PIECE_BYTES = 64 << 10


@pytest.fixture
async def stream() -> AsyncIterator[EventStream]:
    """The stream of one open sequence, whose every token is an event."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = EventStream(
            EngineClient(ours), lambda output, _: EVENT if output.tokens else None, lambda _: None
        )
        stream.expect({1})
        yield stream


def say(stream: EventStream, num_tokens: int, finish_reason: str | None = None) -> None:
    for _ in range(num_tokens):
        stream.put(SequenceOutput(1, [7], [], None, None), 0.0)
    if finish_reason is not None:
        stream.put(SequenceOutput(1, [], [], finish_reason, None), 0.0)


async def test_what_has_piled_up_comes_in_pieces(stream: EventStream) -> None:
    say(stream, 1000, "stop")
    pieces = [piece async for piece in stream]
    assert b"".join(pieces) == EVENT * 1000
    assert max(map(len, pieces)) < MAX_PIECE_BYTES + len(EVENT)


async def test_what_comes_at_once_is_one_piece(stream: EventStream) -> None:
    say(stream, 8)
    assert await anext(stream) == EVENT * 8


@pytest.mark.parametrize("failure", [ClientGoneError(), GenerationError("failed")])
async def test_a_failure_is_told_behind_what_has_come(stream: EventStream, failure: Exception) -> None:
    say(stream, 2)
    stream.fail(failure)
    assert await anext(stream) == EVENT * 2
    with pytest.raises(type(failure)):
        await anext(stream)


async def test_the_whole_of_a_slowly_read_stream_comes_in_order(served: Served) -> None:
    body = {"prompt": "a", "n": 16, "max_tokens": 190, "stream": True, "ignore_eos": True, "logprobs": 5}
    async with served.client.stream("POST", "/v1/completions", json=body) as answer:
        await served.until(lambda: served.engine.num_steps and not served.engine.running)
        events = [line async for line in answer.aiter_lines() if line]
    assert len(events) == 16 * 190 + 1
    assert events[-1] == "data: [DONE]"
