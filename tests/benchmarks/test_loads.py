"""Chats, turns, waves, and streams beside a long prompt: what is asked when, and what the figures are of."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from benchmarks.runtime.errors import EngineError, UnsupportedError
from benchmarks.runtime.loads import setting
from benchmarks.runtime.loads.beside_prefill import prefill_beside
from benchmarks.runtime.loads.caller import Caller, Reply
from benchmarks.runtime.loads.chats import CHATS, hold_chats
from benchmarks.runtime.loads.long_decode import compute_common_rate, draw_prompts
from benchmarks.runtime.loads.parts import OWN_LOADS
from benchmarks.runtime.loads.second_turn import hold_two_turns
from benchmarks.runtime.loads.waves import Request, ask_in_turn, ask_in_waves, draw_requests, measure_rate
from benchmarks.runtime.workload import SHARED_PREFIX, compute_rate, find_fault


class FakeCaller(Caller):
    """Draws a token of each answer in a tick, and can do so for all at once. A tick is a second."""

    def __init__(self, num_lost: int = 0) -> None:
        """`num_lost` token ids of each answer do not come, the first ones."""
        self.asked: list[tuple[int, list[int]]] = []
        """The tick and the prompt of each request."""
        self.most_at_once = self._at_once = 0
        self._num_lost, self._ids = num_lost, count(100_000)
        self._ticks: Iterator[int] = count()
        self._now = 0

    async def ask(self, prompt: Sequence[int], num_tokens: int, reply: Reply | None = None) -> Reply:
        reply = reply or Reply()
        self.asked.append((self._now, list(prompt)))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        reply.sent = float(self._now)
        for number in range(num_tokens):
            await asyncio.sleep(0)
            self._now = max(self._now, int(reply.sent) + number + 1)
            reply.times.append(reply.sent + number + 1)
            reply.begun.set()
        reply.tokens += [next(self._ids) for _ in range(num_tokens)][self._num_lost :]
        reply.total = num_tokens
        self._at_once -= 1
        return reply


async def test_a_turn_has_the_whole_history_and_the_engines_own_answers() -> None:
    caller = FakeCaller()
    completions = await hold_chats(caller, CHATS, "0")
    assert find_fault(CHATS, completions) is None
    assert compute_rate(CHATS, completions) == pytest.approx(64 * 32 / 128)  # four turns of 32 ticks
    prompts = [prompt for _, prompt in caller.asked]
    assert [sum(len(prompt) == 576 + 96 * turn for prompt in prompts) for turn in range(4)] == [16] * 4
    assert len({tuple(prompt[:512]) for prompt in prompts}) == CHATS.num_tenants
    assert len({tuple(prompt) for prompt in prompts}) == CHATS.num_requests
    for prompt in prompts:
        assert [token >= 100_000 for token in prompt] == (
            [False] * 576 + ([True] * 32 + [False] * 64) * ((len(prompt) - 576) // 96)
        )


async def test_chats_need_the_answers_token_ids() -> None:
    for num_lost in (5, 32):
        with pytest.raises(EngineError, match=f"{32 - num_lost} token ids came of 32 tokens"):
            await hold_chats(FakeCaller(num_lost), CHATS, "0")
    short = CHATS.shorten()
    assert (short.name, short.num_chats, short.num_requests) == (SHARED_PREFIX, 1, 4)


async def test_an_answer_that_lacks_an_id_is_continued_without_it() -> None:
    caller = FakeCaller(num_lost=1)
    completions = await hold_chats(caller, CHATS, "0")
    assert find_fault(CHATS, completions) is None
    assert {completion.num_tokens for completion in completions} == {32}
    assert {len(prompt) for _, prompt in caller.asked} == {576, 576 + 95, 576 + 190, 576 + 285}


async def test_the_second_turn_is_the_first_with_its_answer_and_more() -> None:
    caller = FakeCaller()
    assert await hold_two_turns(caller, [1, 2], [3]) == 1.0
    assert [len(prompt) for _, prompt in caller.asked] == [2, 2 + 64 + 1]


async def test_continuous_requests_follow_one_another_and_waves_wait_for_their_last() -> None:
    requests = [Request([number], 10 if number % 8 == 0 else 2) for number in range(32)]
    waves, turns = FakeCaller(), FakeCaller()
    static = await measure_rate(ask_in_waves(waves, requests))
    continuous = await measure_rate(ask_in_turn(turns, requests))
    assert [tick for tick, _ in waves.asked] == [0] * 8 + [10] * 8 + [20] * 8 + [30] * 8
    assert static == 96 / 40
    assert continuous > 2 * static
    assert waves.most_at_once == turns.most_at_once == 8
    assert sorted(prompt for _, prompt in turns.asked) == [[number] for number in range(32)]


def test_a_quarter_of_the_answers_is_long() -> None:
    lengths = [request.num_tokens for request in draw_requests(400, "0")]
    assert {8 <= length <= 40 or 192 <= length <= 320 for length in lengths} == {True}
    assert sum(length > 40 for length in lengths) / 400 == pytest.approx(0.25, abs=0.05)


class Streaming(FakeCaller):
    """Decodes in ticks of a second, and of ten while the long prompt is there, which takes three of these."""

    async def ask(self, prompt: Sequence[int], num_tokens: int, reply: Reply | None = None) -> Reply:
        reply = reply or Reply()
        reply.sent = float(self._now)
        is_long = len(prompt) > 10
        for number in range(3 if is_long else num_tokens):
            if is_long:
                self._now += 10
            await asyncio.sleep(0)
            if not is_long:
                reply.times.append(float(self._now))
                reply.begun.set()
                if len(prompt) == 1 and number == 2:
                    raise EngineError("it broke off")
        reply.times = [float(self._now)] if is_long else reply.times
        return reply


async def test_the_gaps_are_those_while_the_prompt_is_computed_and_decoders_are_cancelled_then() -> None:
    times = await prefill_beside(Streaming(), [[1, 2], [3, 4]], [0] * 20)
    assert times.first_token == 30
    assert set(times.gaps) == {10.0}
    with pytest.raises(EngineError, match=r"before the prompt beside it: .*it broke off"):
        await prefill_beside(Streaming(), [[1], [3, 4]], [0] * 20)


def test_the_rate_of_decode_is_of_the_time_in_which_all_decode() -> None:
    replies = [Reply(times=[float(number) for number in range(1, 9)]), Reply(times=[3.0, 5.0, 7.0])]
    assert compute_common_rate(replies) == (4 + 2) / 4
    replies[1].times = [9.0]
    with pytest.raises(EngineError, match="at the same time"):
        compute_common_rate(replies)
    assert {len(prompt) for prompt in draw_prompts(20)} == {20}
    assert draw_prompts(20) == draw_prompts(20)


def test_gaps_are_those_that_lie_at_least_partly_within_a_time() -> None:
    reply = Reply(times=[0.0, 1.0, 3.0, 6.0, 10.0])
    assert reply.list_gaps(2.0, 5.0) == [2.0, 3.0]
    assert reply.list_gaps() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("part", "flag"),
    [("drafts", "--speculative-tokens"), ("beside", "--target-inter-token-seconds"), ("kv", "--kv-cache")],
)
def test_a_part_whose_flag_our_command_lacks_says_so(
    part: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setting, "has_flag", lambda _: False)
    with pytest.raises(UnsupportedError, match=f"has no {flag}"):
        OWN_LOADS[part](setting.Setting(None, None, 1, None, is_quick=True))  # type: ignore[arg-type]
