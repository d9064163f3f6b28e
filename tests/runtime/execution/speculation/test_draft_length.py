"""How many tokens are guessed: whole sequences of drafts, and the measured cost of a token."""

import random
from itertools import pairwise

import pytest

from millrace_runtime.execution.speculation.draft_length import (
    FIRST_COST,
    FIRST_REST,
    LONGEST_REST,
    Pace,
    TokenCost,
    choose_length,
)
from millrace_runtime.execution.speculation.proposer import PromptLookup
from millrace_runtime.execution.speculation.speculation import History, Speculation, _Guessed
from millrace_runtime.protocol.step import KvGroup, Limits, Row, RowResult, StepPlan, StepResult


@pytest.mark.parametrize(
    ("acceptance", "cost", "num_rows", "length"),
    [
        (1.0, 0.1, 1, 4),
        (0.8, 0.1, 1, 4),
        (0.5, 0.1, 1, 2),
        (0.2, 0.1, 1, 1),
        (0.05, 0.1, 1, 0),
        (0.8, 0.1, 8, 2),  # others wait for the tokens too
        (0.3, 0.1, 8, 0),
        (0.8, 0.005, 64, 3),  # a GPU
        (0.9, 1.0, 32, 0),  # a processor that computes all the time
    ],
)
def test_guesses_are_as_many_as_bring_the_most_tokens_a_second(
    acceptance: float, cost: float, num_rows: int, length: int
) -> None:
    assert choose_length(acceptance, cost, num_rows, 4) == length


def play(rate: float, num_draws: int, cost: float = 0.1) -> tuple[list[int], float]:
    """Return the lengths of a sequence's drafts, and its speed over the speed without any."""
    rng, pace, lengths, tokens, seconds = random.Random(1), Pace(), [], 0, 0.0
    for _ in range(num_draws):
        length = pace.choose(cost, 1, 4)
        num_right = next((n for n in range(length) if rng.random() >= rate), length)
        if length:
            pace.note(length, num_right)
        lengths.append(length)
        tokens, seconds = tokens + 1 + num_right, seconds + 1 + cost * length
    return lengths, tokens / seconds


def test_a_sequence_without_right_guesses_soon_has_hardly_any() -> None:
    lengths, speed = play(0.0, 900)
    begun = lengths.index(0)
    assert begun <= 12
    trials = [number for number, length in enumerate(lengths) if length and number > begun]
    rests = [after - before for before, after in pairwise(trials)]
    assert rests == [2 * FIRST_REST, 4 * FIRST_REST, LONGEST_REST, LONGEST_REST]
    assert speed >= 0.99
    assert play(0.0, 64)[1] >= 0.97  # of a short text


def test_right_guesses_are_worth_it_and_come_back_after_a_rest() -> None:
    assert play(0.8, 400)[1] >= 2.0
    assert play(1.0, 400)[1] >= 3.4
    pace = Pace()
    while pace.choose(0.1, 1, 4):
        pace.note(4, 0)
    while not (length := pace.choose(0.1, 1, 4)):
        pass
    assert length == 1
    lengths = []
    for _ in range(8):
        pace.note(length, length)
        lengths.append(length := pace.choose(0.1, 1, 4))
    assert lengths == sorted(lengths)
    assert lengths[-1] == 4


def test_a_trial_without_guesses_is_none() -> None:
    """The sequence's own text had nothing to guess: the next draw may have."""
    pace = Pace(acceptance=0.0, num_rested=FIRST_REST)
    assert [pace.choose(0.1, 1, 4) for _ in range(3)] == [1, 1, 1]


def test_a_full_step_tries_nothing() -> None:
    pace = Pace()
    assert not any(pace.choose(0.25, 32, 4) for _ in range(1000))
    assert pace.choose(0.25, 1, 4) == 1


def test_a_tokens_cost_is_that_of_the_steps() -> None:
    cost, rng = TokenCost(), random.Random(2)
    assert cost.relative == FIRST_COST
    for _ in range(50):
        cost.observe(1, 0.02)
    assert cost.relative == pytest.approx(FIRST_COST)  # no step with more tokens has shown another one
    for wanted in (0.02, 0.4):
        for _ in range(200):
            num_tokens = rng.randrange(1, 6)
            disturbance = 10.0 if rng.random() < 0.05 else 1.0
            cost.observe(num_tokens, disturbance * 0.02 * (1 + wanted * (num_tokens - 1)))
        assert cost.relative == pytest.approx(wanted, rel=0.5, abs=0.02)


def test_a_tokens_cost_has_bounds() -> None:
    cost = TokenCost()
    for _ in range(100):
        for num_tokens in (1, 8, 32, 64):
            cost.observe(num_tokens, 1e-3 * num_tokens**2)
    assert cost.relative == 1.0
    for _ in range(300):
        for num_tokens in (1, 8, 32, 64):
            cost.observe(num_tokens, 1.0 / num_tokens)
    assert 0 < cost.relative <= 0.001


def test_where_two_steps_are_in_flight_a_draft_must_bring_two_tokens() -> None:
    """A sequence with a draft sits out the next step, in which others have their tokens."""
    assert [choose_length(acceptance, 0.01, 1, 4, depth=2) for acceptance in (0.3, 0.5, 0.7, 0.9)] == [
        0,
        0,
        4,
        4,
    ]


def test_slow_first_steps_say_nothing_of_a_tokens_cost() -> None:
    """Twenty seconds of compiling or paging, and then tokens that cost 0.3 of a step."""
    cost = TokenCost()
    cost.observe(1, 20.0)
    for number in range(100):
        tokens = 1 + number % 5
        cost.observe(tokens, 0.01 * (0.7 + 0.3 * tokens))
    assert cost.relative == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize(
    ("rows", "is_learned"),
    [
        ([Row(0, 1, True), Row(1, 4, True, forced=(7, 7, 7))], True),
        ([Row(0, 1, True), Row(1, 4, True)], False),
    ],
)
def test_steps_with_forced_tokens_teach_a_tokens_cost(rows: list[Row], *, is_learned: bool) -> None:
    speculation = Speculation(Limits((KvGroup(64),), 4, 4, 1, 100, 50, 16, 4, 8), PromptLookup())
    speculation._cost._num_slow = 0
    for slot in range(2):
        speculation._slots[slot] = _Guessed(0, History(b""))
    for number in range(60):
        speculation.follow(StepPlan(number, [], [], [], rows))
        results = [RowResult(row.slot, 1, [5], 9) for row in rows]
        speculation.offer(StepResult(number, results, 0.5))
    assert (speculation._cost.relative != FIRST_COST) == is_learned
