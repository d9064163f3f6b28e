"""The scores of prompts, beside transformers and beside themselves."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM

from millrace_kernels.device_kernels import select_kernels, select_triton
from millrace_runtime.execution.scoring import Scored, ScoredRow, score_tokens
from millrace_runtime.protocol.encoding import unpack_floats, unpack_tokens
from millrace_runtime.protocol.step import PromptLogprobs, RowResult

TOP = 3
KINDS = [("auto", 1), ("torch", 1), ("auto", 2), ("torch", 2)]
"""Kernels, and workers."""


class Token(NamedTuple):
    position: int
    rank: int
    logprob: float
    top: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def unpack(scores: PromptLogprobs) -> list[Token]:
    ranks, logprobs = unpack_tokens(scores.ranks), unpack_floats(scores.logprobs)
    top, values = unpack_tokens(scores.top_tokens), unpack_floats(scores.top_logprobs)
    number = len(top) // len(ranks)
    cuts = [slice(at, at + number) for at in range(0, len(ranks) * number, number or 1)] or [slice(0)] * len(
        ranks
    )
    return [
        Token(scores.first + at, ranks[at], logprobs[at], tuple(top[cut]), tuple(values[cut]))
        for at, cut in enumerate(cuts)
    ]


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, 199, (length,), generator=generator).tolist()
    return tokens


def collect(driver: Any, slot: int, chunk: int, count: int) -> tuple[list[Token], list[RowResult]]:
    """Run until the slot's sequence has drawn so many tokens; its scores, and its results with a token."""
    scores: list[Token] = []
    drawn: list[RowResult] = []
    while len(drawn) < count:
        for row in driver.advance(chunk):
            if row.slot == slot:
                scores += unpack(row.prompt_logprobs) if row.prompt_logprobs else []
                drawn += [row] if row.tokens else []
    return scores, drawn


def expect(model: Any, tokens: list[int]) -> list[tuple[int, float, torch.Tensor]]:
    """Each position after the first, with its token's log-probability and all others'."""
    with torch.inference_mode():
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return [(at, logprobs[at - 1, tokens[at]].item(), logprobs[at - 1]) for at in range(1, len(tokens))]


@pytest.mark.parametrize(("kernels", "workers"), KINDS)
def test_scores_agree_with_transformers_over_chunk_borders(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], kernels: str, workers: int
) -> None:
    """Beside sequences that decode and ones that score; bit for bit the same for each chunk and company."""
    path, tokens = make_model(), prompt(150, 0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    theirs = expect(model, tokens)
    driver, found = make_driver(path, workers, kernels=kernels), []
    for chunk, crowd in ((512, 0), (37, 4), (1, 1)):
        known = tokens if chunk > 1 else tokens[:30]
        for other in range(crowd):
            driver.start(
                other, prompt(5 + 20 * other, other + 1), num_prompt_logprobs=(None, 0, 7)[other % 3]
            )
        driver.advance(512)
        driver.start(9, known, num_logprobs=TOP, num_prompt_logprobs=TOP)
        scores, _ = collect(driver, 9, chunk, 2)
        assert [token.position for token in scores] == list(range(1, len(known)))
        for token, (_, logprob, all_of_them) in zip(scores, theirs, strict=False):
            assert token.logprob == pytest.approx(logprob, abs=2e-3)
            assert token.rank == pytest.approx((all_of_them > logprob).sum().item() + 1, abs=2)
            assert token.top_logprobs == pytest.approx(all_of_them.topk(TOP).values.tolist(), abs=2e-3)
            if tokens[token.position] in token.top:
                assert token.top.index(tokens[token.position]) == token.rank - 1
        found.append(scores)
        for slot in list(driver.held):
            driver.release(slot)
    assert found[1] == found[0]
    assert found[2] == found[0][:29]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_scoring_changes_no_draw_and_no_other_row(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], kernels: str
) -> None:
    path, tokens, answers = make_model(), prompt(70, 0), []
    for number in (None, 5):
        driver = make_driver(path, kernels=kernels)
        driver.start(0, prompt(20, 1), num_logprobs=TOP, temperature=0.9, seed=3)
        driver.advance(512)
        driver.start(1, tokens, num_logprobs=TOP, num_prompt_logprobs=number)
        rows = [driver.advance(20) for _ in range(6)]
        answers.append([[(row.slot, row.tokens, row.logprobs) for row in step] for step in rows])
    assert answers[0] == answers[1]


def test_what_was_scored_before_a_preemption_is_not_scored_again(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    driver, tokens = make_driver(make_model()), prompt(40, 0)
    driver.start(0, tokens, num_prompt_logprobs=2)
    whole, _ = collect(driver, 0, 512, 1)
    driver.start(1, tokens, num_scored=13, num_prompt_logprobs=2)
    assert collect(driver, 1, 9, 1)[0] == whole[13:]


def test_triton_scores_the_same() -> None:
    """By slices of three rows, of which the last has one."""
    hidden = torch.randn(10, 199, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    known = torch.tensor([prompt(12, 0), prompt(12, 1)])
    scored = Scored(TOP, [ScoredRow(0, 1, 0, 4, 5), ScoredRow(2, 0, 7, 1, 2)])
    ours, theirs = (
        score_tokens(scored, partial(hidden.index_select, 0), known, kernels.sampler, max_rows=3)
        for kernels in (select_kernels(torch.device("cpu")), select_triton())
    )
    assert torch.equal(ours.ranks, theirs.ranks)
    torch.testing.assert_close(ours.top.drawn, theirs.top.drawn)
    torch.testing.assert_close(ours.top.values, theirs.top.values)
    [expected] = hidden[8].log_softmax(-1)[known[0, 2]][None].tolist()
    assert ours.top.drawn[6].item() == pytest.approx(expected)


def test_a_score_that_is_not_finite_is_a_fault_of_its_row(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    driver = make_driver(make_model())
    driver.start(0, prompt(20, 0), num_prompt_logprobs=1)
    driver.start(1, prompt(20, 1), num_prompt_logprobs=1)
    driver.run({0: 9, 1: 9})
    with torch.inference_mode():
        for cache in driver.executor._runner.kv_caches:
            cache.data[driver.held[1][0]] = float("nan")
    ours, theirs = driver.run({0: 5, 1: 5})
    assert [token.position for token in unpack(ours.prompt_logprobs)] == [10, 11, 12, 13, 14]
    assert theirs.prompt_logprobs is None
    assert "not finite" in theirs.fault
