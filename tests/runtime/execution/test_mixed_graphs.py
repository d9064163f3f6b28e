"""Recorded steps with prompts: the GPU's path in Triton's interpreter, with a tape instead of CUDA."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from millrace_fit.plan import MOST_MIXED, choose_mixed_sizes
from millrace_runtime.protocol.executor import Record
from millrace_runtime.protocol.step import StepSize
from tests.runtime.execution.tape import CountingRecorder, prompt

pytestmark = pytest.mark.reads("kernels", "tests/runtime")

MakeModel = Callable[..., Path]
OpenDriver = Callable[..., Any]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 1, "min_p": 0.01, "num_logprobs": 2},
    {"temperature": 0.9, "seed": 2, "top_p": 0.9},
    {"temperature": 0.0, "frequency_penalty": 3.0, "bias": {7: 3.0}},
]


def record_all(driver: Any) -> None:
    for size in reversed(driver.executor.limits.recordable):
        driver.executor.control(Record(size))


def run_at_random(driver: Any, seed: int, num_steps: int) -> list[list[list[int]]]:
    """Start and end sequences, and compute chunks of them, all by the seed. Return what each step drew."""
    rng, drawn, free = random.Random(seed), [], [0, 1, 2]
    for _ in range(num_steps):
        if free and rng.random() < 0.8:
            slot = free.pop()
            driver.start(slot, prompt(rng.randrange(1, 20), rng.randrange(99)), **rng.choice(SAMPLINGS))
        elif not free and rng.random() < 0.5:
            free.append(rng.choice(sorted(driver.known)))
            driver.release(free[-1])
        left = {slot: len(known) - driver.computed[slot] for slot, known in driver.known.items()}
        chunks = {slot: rng.randint(1, count) for slot, count in left.items()}
        drawn.append([row.tokens for row in driver.run(chunks)] if chunks else [])
    return drawn


@pytest.mark.parametrize("seed", [1, 2])
def test_any_mix_of_rows_draws_the_same_tokens_by_graphs(
    make_model: MakeModel, graphs: CountingRecorder, open_driver: OpenDriver, seed: int
) -> None:
    """Larger steps are computed as before."""
    path = make_model(num_hidden_layers=1)
    expected = run_at_random(open_driver(path), seed, 8)
    driver = open_driver(path, 4, mixed=(8, 20))
    record_all(driver)
    assert run_at_random(driver, seed, 8) == expected
    assert graphs.num_recorded == 3
    assert graphs.num_repeated >= 6


def test_a_step_takes_the_graph_of_its_kind(
    make_model: MakeModel, graphs: CountingRecorder, open_driver: OpenDriver
) -> None:
    """A chunk that draws nothing is a graph's too. Without a decode graph, decode steps have none."""
    driver = open_driver(make_model(num_hidden_layers=1), mixed=(8,))
    record_all(driver)
    driver.start(0, prompt(9, 0))
    counts = []
    for chunk in (4, 3, 2, 1):
        driver.run({0: chunk})
        counts.append(graphs.num_repeated)
    assert counts == [1, 2, 3, 3]


def test_padding_changes_no_keys(
    make_model: MakeModel, graphs: CountingRecorder, open_driver: OpenDriver
) -> None:
    driver = open_driver(make_model(num_hidden_layers=1), mixed=(8,))
    caches = [one.data for one in driver.executor._runner.kv_caches]
    before = [cache.clone() for cache in caches]
    record_all(driver)
    assert all(map(torch.equal, before, caches)), "nor does recording"
    driver.start(0, prompt(3, 0))
    driver.run({0: 3})
    assert graphs.num_repeated == 1
    changed = [int((cache != old).any(dim=-1).sum()) for cache, old in zip(caches, before, strict=True)]
    assert changed == [3 * 2 * 2], "a key and a value of two heads for each token"


@pytest.mark.parametrize(
    ("max_tokens", "sizes"),
    [
        (8, (8,)),
        (100, (16, 32, 64, 100)),
        (4096, (16, 32, 64, 128, 192, 256, 320, 384, 448, MOST_MIXED)),
    ],
)
def test_sizes_end_with_the_most_tokens(max_tokens: int, sizes: tuple[int, ...]) -> None:
    assert choose_mixed_sizes(max_tokens) == sizes


def test_kinds_are_sorted_by_their_tokens() -> None:
    sizes = [StepSize(16, is_mixed=True), StepSize(8), StepSize(16), StepSize(8, is_mixed=True)]
    assert sorted(sizes) == [sizes[1], sizes[3], sizes[2], sizes[0]]
