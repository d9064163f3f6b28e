"""Texts whose drafts hold as often as is wanted, and a model that can write nothing else."""

import random
from collections.abc import Sequence
from itertools import takewhile

import pytest
import torch

from benchmarks.runtime.drafts.checkpoint import GAIN, WALKING, make_walk
from benchmarks.runtime.drafts.texts import LIKELY, MISLEADING, PATTERNS, Pattern, Walks, list_steps, walk
from benchmarks.runtime.workload import Figure

NUM_DRAFTED = 4


def guess(known: Sequence[int]) -> list[int]:
    """Return what followed the last place where the last two tokens stood before."""
    for end in range(len(known) - 1, 1, -1):
        if known[end - 2 : end] == known[-2:]:
            return list(known[end : end + NUM_DRAFTED])
    return []


def count_guesses(pattern: Pattern) -> tuple[int, int]:
    """Return how many guesses were tried, step after step, and how many of these were right."""
    text = walk(next(pattern.list_cycles()), 2048, random.Random(1))
    place, tried, held = 256, 0, 0
    while place < len(text) - NUM_DRAFTED:
        guessed = guess(text[place - 256 : place])
        pairs = zip(guessed, text[place:], strict=False)
        accepted = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        tried += min(accepted + 1, len(guessed))
        held += accepted
        place += accepted + 1
    return tried, held


def test_of_ten_guesses_after_right_ones_eight_hold_or_none() -> None:
    tried, held = count_guesses(LIKELY)
    assert held / tried == pytest.approx(0.8, abs=0.04)
    tried, held = count_guesses(MISLEADING)
    assert tried > 500  # there are drafts
    assert held / tried < 0.02


def test_each_request_walks_a_cycle_of_its_own() -> None:
    case = Walks("many", Figure.OUTPUT, 32, 64, 8)
    first, second = case.draw_prompts("0"), case.draw_prompts("1")
    assert first == case.draw_prompts("0")
    walked = [{(token - LIKELY.first) // sum(LIKELY.sizes) for token in prompt} for prompt in first]
    assert (len(set.union(*walked)), {len(cycles) for cycles in walked}) == (32, {1})
    starts = {tuple(prompt[:16]) for prompt in first + second}
    assert len(starts) == 64  # no two share a block


def test_the_next_token_of_the_model_is_any_of_the_next_place() -> None:
    size = (WALKING.vocabulary, WALKING.hidden)
    torch.manual_seed(0)
    names = ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.down_proj.weight")
    weights = {name: torch.randn(size, dtype=torch.bfloat16) for name in names}
    make_walk(weights)
    embedding, head, zeroed = (weights[name] for name in names)
    assert not zeroed.any()
    assert MISLEADING.end <= WALKING.vocabulary
    steps = [random.Random(2).choice([*list_steps([pattern])]) for pattern in PATTERNS for _ in range(8)]
    for place, following in steps:
        hidden = torch.nn.functional.rms_norm(embedding[place.start].float(), (WALKING.hidden,))
        logits = head.float() @ hidden
        inside = logits[following.start : following.stop].clone()
        assert inside.min() == inside.max() > 20 * GAIN
        logits[following.start : following.stop] = 0
        assert logits.max() < inside.min() - 25
