"""Whether a model fits, with the arithmetic, and the nearest settings with which it fits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from millrace_fit.accelerators import GIB, Accelerator
from millrace_fit.errors import ArchitectureError
from millrace_fit.facts import ModelFacts
from millrace_fit.module_schemes import check_shares
from millrace_fit.plan import MemoryPlan, plan_memory
from millrace_fit.settings import (
    FLAGS,
    FP8_CACHE,
    FROM_CHECKPOINT,
    INT8_CACHE,
    MODEL_TYPE,
    WEIGHTS,
    Settings,
    Wording,
    can_round,
    refuse_cache,
)
from millrace_fit.shard import MOST_GPUS, Shard
from millrace_fit.units import show_count, show_gib

MOST_GIB: Final = 4096
"""The most memory of a pod."""
USEFUL_LENGTH: Final = 1024
"""The fewest tokens of a sequence that a remedy proposes."""


class Answer(StrEnum):
    """The answer before a pod starts."""

    FITS = "Fits"
    TIGHT = "Tight"
    """A replica starts, but its sequences are shorter than the model's, or fewer at a time than asked.

    Or the answer depends on the node.
    """
    DOES_NOT_FIT = "DoesNotFit"
    UNSUPPORTED = "Unsupported"
    """No replica serves this model, or none with these settings."""
    UNKNOWN = "Unknown"
    """The device's memory is not known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer, in words."""

    answer: Answer
    message: str
    remedy: str | None = None
    """A setting that would fit, or fit better."""
    plan: MemoryPlan | None = None

    @property
    def starts(self) -> bool:
        """Whether a replica would start and serve."""
        return self.answer in {Answer.FITS, Answer.TIGHT}

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}; {self.remedy}"


def judge(
    facts: ModelFacts, settings: Settings, accelerator: Accelerator | None, wording: Wording = FLAGS
) -> Verdict:
    """Return whether a model fits on `settings.tensor_parallel` such devices, or in such a pod on CPUs."""
    if facts.fault is not None or facts.shape is None:
        return Verdict(Answer.UNSUPPORTED, facts.fault or "no replica serves this architecture")
    fault = _find_fault_of_settings(facts, settings, wording)
    fault = fault or _find_fault_of_workers(facts, settings, wording)
    fault = fault or _find_fault_of_device(facts, settings, accelerator, wording)
    if fault is not None:
        return Verdict(Answer.UNSUPPORTED, fault)
    if accelerator is None:
        return Verdict(Answer.UNKNOWN, "the accelerator's memory is not known")
    try:
        plan = plan_memory(facts.weigh(settings), accelerator.memory_bytes)
    except ArchitectureError as error:
        return Verdict(Answer.UNSUPPORTED, str(error))
    answer, message = _weigh(plan, settings, settings.max_model_length or facts.shape.max_length)
    remedy = None if answer is Answer.FITS else find_remedy(facts, settings, accelerator, wording)
    return Verdict(answer, message, remedy, plan)


def _find_fault_of_settings(facts: ModelFacts, settings: Settings, wording: Wording) -> str | None:
    """Return why a replica refuses the settings, as `execution/loading.py`, `build.py` and its flags do."""
    assert facts.shape is not None
    own = facts.shape.max_length
    length = settings.max_model_length or own
    if settings.weights != FROM_CHECKPOINT and facts.quantized:
        left = wording.weights.format(FROM_CHECKPOINT)
        return (
            f"the checkpoint is quantised already, and can't be rounded to {settings.weights}: write {left}"
        )
    if settings.weights != FROM_CHECKPOINT and not can_round(settings.device):
        return f"weights in {settings.weights} have no kernels for GPUs yet: leave them {FROM_CHECKPOINT}"
    if (fault := refuse_cache(settings.kv_cache, settings.device)) is not None:
        return f"{fault}: write {wording.kv_cache.format(INT8_CACHE)}"
    if length > own:
        return f"sequences of {show_count(length)} tokens are longer than the model's own {show_count(own)}"
    if settings.num_batched_tokens < settings.num_sequences:
        return (
            f"each of {settings.num_sequences} sequences computes a token a step: write "
            f"{wording.max_batched_tokens.format(settings.num_sequences)} or more"
        )
    return None


def _find_fault_of_workers(facts: ModelFacts, settings: Settings, wording: Wording) -> str | None:
    """Return why so many workers can't share the model's heads or quantised matrices, with any memory."""
    assert facts.shape is not None
    try:
        for kind in facts.shape.kinds:
            heads = kind.attention
            Shard(0, settings.tensor_parallel).cut_heads(heads.num_heads, heads.num_kv_heads)
        check_shares(facts.shape, facts.quantized, settings.tensor_parallel)
    except ArchitectureError as error:
        return f"{error} ({wording.workers.format('N')})"
    return None


def _find_fault_of_device(
    facts: ModelFacts, settings: Settings, accelerator: Accelerator | None, wording: Wording
) -> str | None:
    if accelerator is None:
        return None
    if accelerator.maker != "NVIDIA":
        return f"replicas run on NVIDIA's GPUs and on CPUs, not on {accelerator.maker}'s"
    if accelerator.is_part and settings.tensor_parallel > 1:
        return f"{accelerator.name} is a part of a GPU, and parts can't share a model: take a larger one"
    if settings.kv_cache == FP8_CACHE and not accelerator.has_fp8:
        return f"{accelerator.name} has no FP8: write {wording.kv_cache.format(INT8_CACHE)}"
    if facts.served_type == "bfloat16" and not accelerator.has_bfloat16:
        return f"{accelerator.name} has no bfloat16, in which the model is served: take a newer GPU"
    return None


def _weigh(plan: MemoryPlan, settings: Settings, wanted: int) -> tuple[Answer, str]:
    cache = plan.cache
    if cache is None or plan.is_over:
        return Answer.DOES_NOT_FIT, f"does not fit: {_explain_lack(plan, settings, wanted)}"
    length, room = cache.max_model_length, cache.num_tokens
    if length < wanted:
        return Answer.TIGHT, (
            f"fits with shorter sequences: the KV cache has room for {show_count(room)} tokens, and the "
            f"model's sequences may have {show_count(wanted)}"
        )
    num_whole, num_asked = cache.num_sequences, settings.max_sequences
    if settings.max_model_length and num_asked and num_whole < num_asked:
        return Answer.TIGHT, (
            f"fits with fewer sequences: the KV cache has room for {show_count(room)} tokens, so for "
            f"{show_count(num_whole)} of {show_count(num_asked)} sequences of {show_count(length)} at a time"
        )
    return Answer.FITS, (
        f"fits: {show_gib(plan.taken)} are taken, and {show_gib(cache.num_bytes)} are for the KV cache: "
        f"{show_count(room)} tokens, or {_count_sequences(num_whole)} of {show_count(length)} at a time"
    )


def _count_sequences(count: int) -> str:
    return "one sequence" if count == 1 else f"{show_count(count)} sequences"


def _explain_lack(plan: MemoryPlan, settings: Settings, wanted: int) -> str:
    place = "the pod" if settings.device == "cpu" else "the GPU"
    place = "each GPU" if settings.tensor_parallel > 1 and settings.device == "cuda" else place
    parts = f"weights of {show_gib(plan.weights)} and {show_gib(plan.taken - plan.weights)} beside them"
    if plan.is_over:
        return f"{parts} are more than the {show_gib(plan.total)} of {place}"
    return (
        f"of the {show_gib(plan.total)} of {place}, {parts} leave room for a KV cache of "
        f"{show_count(plan.longest_alone)} tokens, fewer than one sequence of {show_count(wanted)}"
    )


def find_remedy(
    facts: ModelFacts, settings: Settings, accelerator: Accelerator, wording: Wording
) -> str | None:
    """Return the remedy, in words; None if no setting helps."""
    if settings.max_model_length is not None and (length := _find_length(facts, settings, accelerator)):
        return f"it fits with {wording.max_model_length.format(length)}"
    others = _list_others(settings, accelerator, wording, is_quantized=bool(facts.quantized))
    for other, words in others:
        if fits(facts, other, accelerator.memory_bytes):
            return words
    if settings.device == "cpu" and (gib := find_limit(facts, settings)):
        return f"it fits with {wording.memory.format(gib)}"
    return _propose_best(facts, settings, accelerator, wording)


def find_limit(facts: ModelFacts, settings: Settings) -> int | None:
    """Return the least whole GiB of a pod on CPUs in which the model fits; None if it needs over MOST_GIB."""
    low, high = 0, MOST_GIB
    if not fits(facts, settings, high * GIB):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(facts, settings, middle * GIB) else (middle, high)
    return high


def count_gpus(facts: ModelFacts, settings: Settings, accelerator: Accelerator) -> int | None:
    """Return the least of 1, 2, 4, 8 and 16 GPUs on which the model fits; None if it fits on none."""
    for count in (1,) if accelerator.is_part else (1, 2, 4, 8, 16):
        if fits(facts, replace(settings, tensor_parallel=count), accelerator.memory_bytes):
            return count
    return None


def fits(facts: ModelFacts, settings: Settings, memory_bytes: int) -> bool:
    """Whether sequences of the asked length, or of the model's own, fit."""
    assert facts.shape is not None
    wanted = settings.max_model_length or facts.shape.max_length
    plan = _try(facts, settings, memory_bytes)
    if plan is None or plan.cache is None or plan.cache.max_model_length < wanted:
        return False
    asked = settings.max_sequences if settings.max_model_length else None
    return plan.cache.num_sequences >= (asked or 1)


def _try(facts: ModelFacts, settings: Settings, memory_bytes: int) -> MemoryPlan | None:
    assert facts.shape is not None
    try:
        plan = plan_memory(facts.weigh(settings), memory_bytes)
    except ArchitectureError:
        return None
    return None if plan.cache is None or plan.is_over else plan


def _list_others(
    settings: Settings, accelerator: Accelerator, wording: Wording, *, is_quantized: bool
) -> Iterator[tuple[Settings, str]]:
    """Yield other settings, in words. A quantised checkpoint can't be rounded."""
    if settings.kv_cache == MODEL_TYPE:
        smaller = replace(settings, kv_cache=INT8_CACHE)
        yield smaller, f"it fits with {wording.kv_cache.format(INT8_CACHE)}"
    if can_round(settings.device) and not is_quantized:
        for weights in WEIGHTS[WEIGHTS.index(settings.weights) + 1 :]:
            yield replace(settings, weights=weights), f"it fits with {wording.weights.format(weights)}"
    if settings.device == "cuda" and not accelerator.is_part:
        count = 2 * settings.tensor_parallel
        while count <= MOST_GPUS:
            yield replace(settings, tensor_parallel=count), f"it fits {wording.gpus.format(count)}"
            count *= 2


def _find_length(facts: ModelFacts, settings: Settings, accelerator: Accelerator) -> int | None:
    """Return the longest sequences that fit in the asked number, if this length is useful."""
    plan = _try(facts, replace(settings, max_model_length=None), accelerator.memory_bytes)
    if plan is None:
        return None
    length = plan.longest_together
    asked = settings.max_model_length or length
    return length if min(USEFUL_LENGTH, asked) <= length < asked else None


def _propose_best(
    facts: ModelFacts, settings: Settings, accelerator: Accelerator, wording: Wording
) -> str | None:
    """Return the first setting with which shorter sequences fit, if nothing else helps."""
    others = _list_others(settings, accelerator, wording, is_quantized=bool(facts.quantized))
    for other, words in [(settings, "it fits"), *others]:
        plan = _try(facts, replace(other, max_model_length=None), accelerator.memory_bytes)
        if plan is not None and plan.cache is not None and plan.cache.max_model_length >= USEFUL_LENGTH:
            return f"{words} with sequences of up to {show_count(plan.cache.max_model_length)} tokens"
    return None
