from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from millrace_kernels.device_kernels import select_kernels
from millrace_kernels.native.selection import select_cpu_path
from millrace_kernels.sampling.columns import (
    NO_FAULT,
    NO_MASK,
    NOT_FINITE,
    NOTHING_ALLOWED,
    Draws,
    to_signed,
)
from millrace_kernels.sampling.native import NativeSampler
from millrace_kernels.sampling.randomness import random_bits
from millrace_kernels.sampling.sampler import Sampler
from millrace_kernels.sampling.state import SlotState, unpack_bias
from millrace_runtime.execution.sampler import Drawn, lay_out_bias, measure_logprobs, pack
from millrace_runtime.protocol.sampling import Sampling

BAN = -torch.inf
KNOWN = torch.zeros((4, 4096), dtype=torch.int64)
LIBRARY = select_cpu_path().library
TORCH = select_kernels(torch.device("cpu")).sampler


class Draw(NamedTuple):
    """What a row's draw needs beside its logits."""

    sampling: Sampling
    position: int
    slot: int = 0
    num_prompt: int = 4
    mask: int = NO_MASK


def sample(
    logits: torch.Tensor,
    draws: list[Draw],
    known: torch.Tensor,
    masks: torch.Tensor | None = None,
    sampler: Sampler = TORCH,
) -> Drawn:
    places = [(one.slot, one.num_prompt, one.position, one.mask, 0, 0) for one in draws]
    asked = Draws(np.concatenate([pack(one.sampling) for one in draws]), np.array(places))
    state = SlotState.allocate(*known.shape, logits.shape[1], 0, known.device)
    sampled = sampler.draw(logits, asked, state._replace(tokens=known), masks)
    wanted = [one.sampling.num_logprobs for one in draws]
    return Drawn(sampled, measure_logprobs(logits, wanted, sampled.tokens, sampler))


def draw(position: int = 9, num_prompt: int = 4, slot: int = 0, **sampling: float) -> Draw:
    return Draw(Sampling(**sampling), position, slot, num_prompt)


def tokens(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    """Draw by the reference, and natively the same."""
    found: list[int] = sample(logits, draws, KNOWN).sampled.tokens.tolist()
    if LIBRARY is not None:
        native = Sampler(NativeSampler(LIBRARY, logits.shape[1]).sample, TORCH.top_logprobs)
        assert sample(logits, draws, KNOWN, None, native).sampled.tokens.tolist() == found
    return found


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert tokens(torch.tensor([[0.0, 3.0, 1.0, 3.0]]), [draw(temperature=0)]) == [1]


@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"top_p": 0.999999}, {"min_p": 0.04}])
def test_draws_follow_the_distribution(cut: dict[str, float]) -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = (probabilities**0.7).log().expand(4000, 4)
    draws = [draw(position=p, seed=3, temperature=0.7, **cut) for p in range(4000)]
    shares = torch.tensor(tokens(logits, draws)).bincount(minlength=4) / 4000
    torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0.0)


def test_top_k_keeps_the_k_most_likely() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, 0.0]).expand(200, 5)
    assert set(tokens(logits, [draw(position=p, top_k=2) for p in range(200)])) == {1, 3}


def test_min_p_keeps_what_is_so_many_times_as_likely_as_the_most_likely() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(300, 4)
    assert set(tokens(logits, [draw(position=p, min_p=0.29) for p in range(300)])) == {0, 1, 2}
    assert set(tokens(logits, [draw(position=p, min_p=0.31) for p in range(300)])) == {0, 1}
    assert set(tokens(logits, [draw(position=p, min_p=1.0) for p in range(300)])) == {0}


def test_top_p_is_of_what_min_p_leaves() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(300, 4)
    both = {"top_p": 0.85, "min_p": 0.29}  # of 0.95 that are left, 0.8 do not reach 0.8075
    assert set(tokens(logits, [draw(position=p, **both) for p in range(300)])) == {0, 1, 2}
    assert set(tokens(logits, [draw(position=p, top_p=0.84, min_p=0.29) for p in range(300)])) == {0, 1}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(300, 4)
    assert set(tokens(logits, [draw(position=p, top_p=0.75) for p in range(300)])) == {0, 1}
    assert set(tokens(logits, [draw(position=p, top_p=1e-9) for p in range(300)])) == {0}


def test_top_p_keeps_the_lowest_ids_of_a_tie() -> None:
    logits = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]).expand(300, 5)
    assert set(tokens(logits, [draw(position=p, top_p=0.6) for p in range(300)])) == {0, 1, 2}


def test_a_tiny_temperature_is_greedy_not_nan() -> None:
    assert tokens(torch.tensor([[1.0, 90.0, 2.0]]), [draw(temperature=1e-30)]) == [1]


def test_a_row_draws_the_same_whatever_its_neighbours() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(0))
    draws = [draw(seed=7), draw(seed=1, top_k=9), draw(temperature=0), draw(seed=2, top_p=0.5),
             draw(seed=-4, temperature=2.0), draw(seed=2**64 - 1)]  # fmt: skip
    together = tokens(logits, draws)
    assert together == [tokens(logits[i : i + 1], [draws[i]])[0] for i in range(6)]
    assert together[::-1] == tokens(logits.flip(0), draws[::-1])


def test_penalties_count_generated_tokens_only() -> None:
    known = torch.tensor([[2, 2, 2, 2, 1, 1, 0, 3, 3]])
    logits = torch.tensor([[4.0, 5.0, 4.5, 1.0]])
    plain = draw(position=7, temperature=0)
    counted = draw(position=7, temperature=0, frequency_penalty=0.3)
    present = draw(position=7, temperature=0, presence_penalty=0.6)
    assert sample(logits, [plain], known).sampled.tokens.tolist() == [1]
    assert sample(logits, [counted], known).sampled.tokens.tolist() == [2]
    assert sample(logits, [present], known).sampled.tokens.tolist() == [2]


def test_logprobs_are_of_the_model_before_penalties_and_temperature() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    drawn = sample(logits, [draw(temperature=0.1, num_logprobs=2, presence_penalty=1.0)], KNOWN)
    [found] = drawn.logprobs
    expected = logits.log_softmax(-1)[0]
    assert found.top.ids.tolist() == [[2, 1]]
    torch.testing.assert_close(found.top.values[0], expected[[2, 1]])
    torch.testing.assert_close(found.top.drawn, expected[drawn.sampled.tokens])
    assert sample(logits, [draw()], KNOWN).logprobs == []


def test_logprobs_are_measured_of_the_rows_that_ask_and_depend_on_no_other() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).round()  # with ties
    logits[4, 3] = torch.nan
    draws = [draw(num_logprobs=3), draw(), draw(num_logprobs=40), draw(num_logprobs=3), draw(num_logprobs=0)]
    together = sample(logits, draws, KNOWN)
    assert [group.places for group in together.logprobs] == [[0, 3], [2], [4]]
    for group in together.logprobs:
        for at, place in enumerate(group.places):
            [alone] = sample(logits[place : place + 1], [draws[place]], KNOWN).logprobs
            found = tuple(part[at] for part in group.top)
            single = tuple(part[0] for part in alone.top)
            torch.testing.assert_close(found, single, rtol=0.0, atol=0.0, equal_nan=True)


def test_a_row_of_nan_is_marked_and_alone() -> None:
    logits = torch.tensor([[1.0, float("nan")], [0.0, 4.0], [float("inf"), 0.0]])
    drawn = sample(logits, [draw(), draw(temperature=0), draw()], KNOWN)
    assert drawn.sampled.faults.tolist() == [NOT_FINITE, NO_FAULT, NOT_FINITE]
    assert drawn.sampled.tokens.tolist()[1] == 1


def test_a_mask_that_allows_nothing_has_a_fault_of_its_own() -> None:
    masks = torch.tensor([[0], [4]], dtype=torch.int32)
    sampling = Sampling(temperature=0)
    bound = [Draw(sampling, 9, 0, 4, mask) for mask in (0, 1, NO_MASK)]
    drawn = sample(torch.arange(5.0).repeat(3, 1), bound, KNOWN, masks)
    assert drawn.sampled.faults.tolist() == [NOTHING_ALLOWED, NO_FAULT, NO_FAULT]
    assert drawn.sampled.tokens.tolist()[1:] == [2, 4]


def test_the_random_bits_are_spread_and_those_of_two_seeds_are_unrelated() -> None:
    positions = torch.arange(20000)
    numbers, other = (
        random_bits(torch.full((20000,), seed), positions).double() * 2.0**-32 for seed in (42, 43)
    )
    assert 0.0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1.0
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(torch.corrcoef(torch.stack((numbers, other)))[0, 1]) < 0.03


def test_the_random_numbers_are_fixed() -> None:
    found = random_bits(torch.tensor([0, 42, -1]), torch.tensor([0, 7, 2**40]))
    assert found.tolist() == [2802244911, 3155600340, 2336479983]


def test_seeds_of_64_bits_are_taken() -> None:
    assert to_signed(2**64 - 1) == -1
    assert to_signed(2**63) == -(2**63)
    assert to_signed(5) == 5


@pytest.mark.parametrize(
    ("sampling", "then", "while_held"),
    [
        ({}, {}, {}),
        ({"bias": {3: 1.5, 1: -2.0}}, {3: 1.5, 1: -2.0}, {3: 1.5, 1: -2.0}),
        ({"min_tokens": 2, "held_back": (4, 5, 4)}, {}, {4: BAN, 5: BAN}),
        ({"min_tokens": 2, "held_back": (4,), "bias": {2: 1.0}}, {2: 1.0}, {4: BAN, 2: 1.0}),
        ({"min_tokens": 2, "held_back": (4,), "bias": {4: 9.0, 2: BAN}}, {4: 9.0, 2: BAN}, {4: BAN, 2: BAN}),
        ({"held_back": (4,), "bias": {4: 9.0}}, {4: 9.0}, {4: 9.0}),
    ],
)
def test_tokens_that_are_held_back_are_banned_beside_the_bias(
    sampling: dict[str, Any], then: dict[int, float], while_held: dict[int, float]
) -> None:
    entries, ranges = lay_out_bias(Sampling(**sampling))
    ids, values = unpack_bias(torch.tensor([*entries.tolist(), 0]))
    for (begin, end), expected in zip(ranges, (then, while_held), strict=True):
        assert end - begin == len(expected)
        assert dict(zip(ids[begin:end].tolist(), values[begin:end].tolist(), strict=True)) == expected


def test_drawn_tokens_become_known_ones() -> None:
    known = torch.zeros((3, 8), dtype=torch.int64)
    logits = torch.tensor([[0.0, 5.0, 1.0], [9.0, 0.0, 10.0]])
    sample(logits, [draw(position=4, slot=2, temperature=0), draw(position=7, slot=0, temperature=0)], known)
    assert known.nonzero().tolist() == [[0, 7], [2, 4]]
    assert (known[0, 7], known[2, 4]) == (2, 1)
