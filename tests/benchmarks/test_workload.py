"""What is asked, and what an answer is worth."""

import itertools

import pytest

from benchmarks.distinct import NUMBER, DistinctTarget
from benchmarks.runtime.workload import CASES, Case, Completion, Figure, compute_rate, find_fault

BY_NAME = {case.name: case for case in CASES}


def test_prompts_differ_within_a_burst_and_between_rounds_and_are_the_same_for_every_engine() -> None:
    case = BY_NAME["c32"]
    first, second = case.draw_prompts("0"), case.draw_prompts("1")
    assert first == case.draw_prompts("0")
    assert len({tuple(prompt) for prompt in first + second}) == 64
    assert {len(prompt) for prompt in first} == {128}


@pytest.mark.parametrize(
    ("figure", "rate"),
    [
        (Figure.DECODE, (20 - 2) / (9.0 - 2.0)),
        (Figure.PREFILL, 2 * 100 / (2.0 - 1.0)),
        (Figure.OUTPUT, 20 / (9.0 - 1.0)),
    ],
)
def test_a_rate_is_over_the_time_that_its_figure_is_about(figure: Figure, rate: float) -> None:
    completions = [Completion(1.0, 2.0, 7.0, 10), Completion(1.5, 3.0, 9.0, 10)]
    assert compute_rate(Case("two", figure, 2, 100, 10), completions) == pytest.approx(rate)


def test_tokens_that_came_with_the_first_are_not_decoded_in_the_time_after_it() -> None:
    burst = Completion(1.0, 2.0, 7.0, 11, num_first_tokens=3)
    assert compute_rate(Case("one", Figure.DECODE, 1, 100, 11), [burst]) == pytest.approx((11 - 3) / 5.0)


def test_an_answer_that_stopped_early_counts_as_a_fault_and_not_as_a_fast_one() -> None:
    case = Case("two", Figure.OUTPUT, 2, 100, 10)
    whole, cut = Completion(0, 1, 2, 10), Completion(0, 1, 2, 7)
    assert find_fault(case, [whole, whole]) is None
    assert "2 answers of [7, 10] tokens instead of 2 of 10" in (find_fault(case, [whole, cut]) or "")
    assert "1 answers" in (find_fault(case, [whole]) or "")


def test_no_two_requests_of_a_servers_loads_have_a_prompt_that_begins_alike() -> None:
    numbers = itertools.count()
    loads = [
        DistinctTarget("http://127.0.0.1:1", prompt=text, numbers=numbers) for text in ("a", NUMBER + "a")
    ]
    prompts = [load.body(request)["prompt"] for load in loads for request in (0, 1)]
    assert prompts == ["000000 a", "000001 a", "000002 a", "000003 a"]
