"""What a stream's reader is given: all that has come, in pieces that a write may have."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.errors import ClientGoneError, GenerationError
from millrace_runtime.api.event_stream import EventStream
from millrace_runtime.protocol.encoding import pack_floats, pack_tokens
from millrace_runtime.protocol.messages import SequenceOutput
from millrace_runtime.protocol.step import PromptLogprobs
from tests.runtime.api.served import Served

EVENT = b"x" * 1000
MAX_PIECE_BYTES = 64 << 10


@pytest.fixture
async def stream() -> AsyncIterator[EventStream]:
    """The stream of one open sequence, whose every token is an event."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = EventStream(
            EngineClient(ours), lambda output, _: EVENT if output.tokens else None, lambda *_: None
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


async def test_a_waiting_readers_events_are_written_for_it(stream: EventStream) -> None:
    """Only while it has nothing to write itself: else a later event would overtake."""
    written: list[bytes] = []
    is_open = True

    def write(events: bytes) -> bool:
        if is_open:
            written.append(events)
        return is_open

    stream.write = write
    say(stream, 1)
    assert (await anext(stream), written) == (EVENT, [])  # nobody was waiting
    reader = asyncio.ensure_future(anext(stream))
    say(stream, 1)
    assert written == []  # the reader has not come back yet: it may still write
    assert await reader == EVENT

    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    say(stream, 2)
    assert (written, reader.done()) == ([EVENT] * 2, False)
    is_open = False  # a slow client's connection is full
    say(stream, 1)
    is_open = True
    say(stream, 1)
    assert (await reader, len(written)) == (EVENT * 2, 2)

    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    say(stream, 1, "stop")
    assert len(written) == 3
    with pytest.raises(StopAsyncIteration):
        await reader


async def test_events_of_several_sequences_leave_in_one_write(stream: EventStream) -> None:
    stream.expect({2})
    stream.write = lambda _: pytest.fail("these are two writes")
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    for number in (1, 2):
        stream.put(SequenceOutput(number, [7], [], None, None), 0.0)
    assert await reader == EVENT * 2


def score(num_tokens: int) -> PromptLogprobs:
    numbers = list(range(num_tokens))
    return PromptLogprobs(
        1, pack_tokens(numbers), pack_floats(numbers), pack_tokens(numbers * 2), pack_floats(numbers * 2)
    )


async def test_a_long_prompts_scores_take_turns_and_keep_their_order() -> None:
    """A stop string drops the sequence between two tokens that have both come."""
    ours, theirs = socket.socketpair()
    seen: list[SequenceOutput] = []

    def accept(output: SequenceOutput, _: float) -> bytes:
        seen.append(output)
        if output.tokens == [8]:
            stream.drop(1)
        return b"x"

    with ours, theirs:
        stream = EventStream(EngineClient(ours), accept, lambda *_: None)
        stream.expect({1})
        stream.put(SequenceOutput(1, [7], [], None, None, score(1000)), 0.0)
        stream.put(SequenceOutput(1, [8], [], None, None), 0.0)
        stream.put(SequenceOutput(1, [9], [], None, None), 0.0)
        assert len(seen) == 1
        await asyncio.sleep(0)
        assert len(seen) == 2
        assert len([event async for event in stream]) > 1
    assert [output.tokens for output in seen] == [[]] * 7 + [[7], [8]]
    whole, pieces = score(1000), [output.prompt_logprobs for output in seen if output.prompt_logprobs]
    assert [piece.first for piece in pieces] == list(range(1, 1000, 128))
    for name in ("ranks", "logprobs", "top_tokens", "top_logprobs"):
        assert b"".join(getattr(piece, name) for piece in pieces) == getattr(whole, name)


async def test_the_whole_of_a_slowly_read_stream_comes_in_order(served: Served) -> None:
    body = {"prompt": "a", "n": 16, "max_tokens": 190, "stream": True, "ignore_eos": True, "logprobs": 5}
    async with served.client.stream("POST", "/v1/completions", json=body) as answer:
        await served.until(lambda: served.engine.num_steps and not served.engine.running)
        events = [line async for line in answer.aiter_lines() if line]
    assert len(events) == 16 * 190 + 1
    assert events[-1] == "data: [DONE]"
