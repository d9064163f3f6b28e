import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.protocol.encoding import (
    FrameDecoder,
    FrameError,
    count_tokens,
    encode_frame,
    pack_tokens,
    unpack_tokens,
)
from millrace_runtime.protocol.messages import Abort, Generate, NewSequence, ToEngine
from millrace_runtime.protocol.sampling import Sampling

MESSAGES = [
    Generate(
        sequences=[NewSequence(7, Sampling(temperature=0.5, seed=2**63)), NewSequence(8, Sampling())],
        prompt=pack_tokens([1, 2, 2**31 - 1]),
        max_tokens=5,
        stop_token_ids=[0],
    ),
    Abort(7),
    Abort(2**40),
]


@given(cuts=st.lists(st.integers(0, 200), max_size=10))
def test_messages_survive_any_cutting_of_the_stream(cuts: list[int]) -> None:
    stream = b"".join(map(encode_frame, MESSAGES))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = FrameDecoder[ToEngine](ToEngine)
    received = [m for a, b in itertools.pairwise(edges) for m in decoder.feed(stream[a:b])]
    assert received == MESSAGES


def test_a_length_out_of_bounds_is_refused_before_it_is_awaited() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        FrameDecoder[ToEngine](ToEngine).feed(b"\xff\xff\xff\xff")


def test_a_body_of_another_type_is_refused() -> None:
    with pytest.raises(FrameError, match="can't be decoded"):
        FrameDecoder[Abort](Abort).feed(encode_frame(["generate", 1]))


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_tokens_are_little_endian_int32(tokens: list[int]) -> None:
    data = pack_tokens(tokens)
    assert data == b"".join(token.to_bytes(4, "little", signed=True) for token in tokens)
    assert list(unpack_tokens(data)) == tokens
    assert count_tokens(data) == len(tokens)
