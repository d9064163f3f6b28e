"""Greedy output held against transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from millrace_runtime.protocol.step import RowResult

TOP = 3
LENGTH = 12


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, 199, (length,), generator=generator).tolist()
    return tokens


def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def generate(driver: Any, slot: int, chunk: int, count: int) -> list[RowResult]:
    results: list[RowResult] = []
    while len(results) < count:
        results += [r for r in driver.advance(chunk) if r.slot == slot and r.tokens]
    return results


def check(logits: torch.Tensor, num_prompt: int, results: list[RowResult], tolerance: float = 2e-3) -> None:
    """Teacher-forced by our own tokens: each of ours among theirs, and theirs among ours."""
    for step, result in enumerate(results):
        theirs = logits[num_prompt - 1 + step]
        [token], [logprobs] = result.tokens, result.logprobs
        if theirs.argmax().item() != token:
            assert token in theirs.topk(TOP).indices.tolist(), step
            assert theirs.argmax().item() in logprobs.top_tokens, step
        drawn = theirs.log_softmax(-1)[token].item()
        assert logprobs.drawn == pytest.approx(drawn, abs=tolerance)


def check_greedy(
    path: Path, tokens: list[int], make_driver: Callable[..., Any], theirs: Any = AutoModelForCausalLM
) -> None:
    """Alone, in a crowd with small chunks of the same bits, and token by token, by one executor.

    At the first divergent token each side's token must be among the other's most likely.
    """
    model = theirs.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    driver, outputs = make_driver(path), []
    for chunk, crowd in ((512, 0), (37, 5), (1, 0)):
        known = tokens if chunk > 1 else tokens[:20]
        driver.start(3, known, num_logprobs=TOP)
        for other in range(crowd):
            driver.start(4 + other, prompt(10 + 60 * other, other + 1))
        results = generate(driver, 3, chunk, LENGTH)
        drawn = [result.tokens[0] for result in results]
        check(expected_logits(model, known + drawn), len(known), results)
        outputs.append([(result.tokens, result.logprobs) for result in results])
        for slot in list(driver.held):
            driver.release(slot)
    assert outputs[0] == outputs[1]


def check_preempted(
    path: Path,
    tokens: list[int],
    driver: Any,
    theirs: Any = AutoModelForCausalLM,
    *,
    tolerance: float = 2e-3,
) -> None:
    """In chunks beside another sequence, and computed again from the drawn tokens, as after a preemption."""
    model = theirs.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    driver.start(1, prompt(9, 1))
    known = tokens
    for _ in range(2):
        driver.start(3, known, num_logprobs=TOP)
        results = generate(driver, 3, 29, 3)
        drawn = [result.tokens[0] for result in results]
        check(expected_logits(model, known + drawn), len(known), results, tolerance)
        driver.release(3)
        known = known + drawn
