"""The nearest setting with which a model fits: smaller weights, more devices or memory, shorter sequences."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from millrace_fit.accelerators import GIB, Accelerator
from millrace_fit.errors import ArchitectureError
from millrace_fit.facts import ModelFacts
from millrace_fit.plan import MemoryPlan, plan_memory
from millrace_fit.settings import WEIGHTS, Settings, can_round
from millrace_fit.shard import MOST_GPUS
from millrace_fit.wording import Wording, show_count

MOST_GIB: Final = 4096
"""Of a pod's memory."""
USEFUL_LENGTH: Final = 1024
"""Tokens of a sequence. Shorter ones are not proposed."""


def find_remedy(
    facts: ModelFacts, settings: Settings, accelerator: Accelerator, wording: Wording
) -> str | None:
    """Return what to do, in words; None where nothing of it helps."""
    if settings.max_model_length is not None and (length := _find_length(facts, settings, accelerator)):
        return f"it fits with {wording.max_model_length.format(length)}"
    for other, words in _list_others(settings, accelerator, wording):
        if fits(facts, other, accelerator.memory_bytes):
            return words
    if settings.device == "cpu" and (gib := find_limit(facts, settings)):
        return f"it fits with {wording.memory.format(gib)}"
    return _propose_best(facts, settings, accelerator, wording)


def find_limit(facts: ModelFacts, settings: Settings) -> int | None:
    """Return the least whole GiB of a pod on CPUs with which it fits; None where MOST_GIB are too few."""
    low, high = 0, MOST_GIB
    if not fits(facts, settings, high * GIB):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(facts, settings, middle * GIB) else (middle, high)
    return high


def count_gpus(facts: ModelFacts, settings: Settings, accelerator: Accelerator) -> int | None:
    """Return the least number of GPUs, of 1, 2, 4, 8 and 16, on which it fits; None where it fits on none."""
    for count in (1,) if accelerator.is_part else (1, 2, 4, 8, 16):
        if fits(facts, replace(settings, tensor_parallel=count), accelerator.memory_bytes):
            return count
    return None


def fits(facts: ModelFacts, settings: Settings, memory_bytes: int) -> bool:
    """Whether sequences as long as asked for, or as the model's, fit."""
    assert facts.shape is not None
    wanted = settings.max_model_length or facts.shape.max_length
    plan = _try(facts, settings, memory_bytes)
    if plan is None or plan.cache is None or plan.cache.max_model_length < wanted:
        return False
    asked = settings.max_sequences if settings.max_model_length else None
    return plan.cache.num_tokens >= wanted * (asked or 1)


def _try(facts: ModelFacts, settings: Settings, memory_bytes: int) -> MemoryPlan | None:
    assert facts.shape is not None
    try:
        plan = plan_memory(facts.shape, facts.served_type, settings, memory_bytes)
    except ArchitectureError:
        return None
    return None if plan.cache is None or plan.is_over else plan


def _list_others(
    settings: Settings, accelerator: Accelerator, wording: Wording
) -> Iterator[tuple[Settings, str]]:
    if can_round(settings.device):
        for weights in WEIGHTS[WEIGHTS.index(settings.weights) + 1 :]:
            yield replace(settings, weights=weights), f"it fits with {wording.weights.format(weights)}"
    if settings.device == "cuda" and not accelerator.is_part:
        count = 2 * settings.tensor_parallel
        while count <= MOST_GPUS:
            yield replace(settings, tensor_parallel=count), f"it fits {wording.gpus.format(count)}"
            count *= 2


def _find_length(facts: ModelFacts, settings: Settings, accelerator: Accelerator) -> int | None:
    """Return the longest sequences that fit, if they are of any use: as many at a time as asked for."""
    plan = _try(facts, replace(settings, max_model_length=None), accelerator.memory_bytes)
    if plan is None:
        return None
    length = plan.room_tokens // (settings.max_sequences or 1)
    asked = settings.max_model_length or length
    return length if min(USEFUL_LENGTH, asked) <= length < asked else None


def _propose_best(
    facts: ModelFacts, settings: Settings, accelerator: Accelerator, wording: Wording
) -> str | None:
    """Return the first setting with which at least shorter sequences fit, where no other helps."""
    for other, words in [(settings, "it fits"), *_list_others(settings, accelerator, wording)]:
        plan = _try(facts, replace(other, max_model_length=None), accelerator.memory_bytes)
        if plan is not None and plan.cache is not None and plan.cache.max_model_length >= USEFUL_LENGTH:
            return f"{words} with sequences of up to {show_count(plan.cache.max_model_length)} tokens"
    return None
