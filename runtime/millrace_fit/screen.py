"""The view of a model and its memory: a screen of lines, or JSON. Pure."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from millrace_fit.accelerators import CPU, Accelerator
from millrace_fit.errors import ArchitectureError
from millrace_fit.facts import ModelFacts
from millrace_fit.kv_budget import BLOCK_SIZE
from millrace_fit.plan import MemoryPlan
from millrace_fit.settings import FROM_CHECKPOINT, WEIGHTS, Settings
from millrace_fit.units import show_count, show_gib, show_kib, show_parameters
from millrace_fit.verdict import Answer, Verdict, count_gpus, find_limit, judge

WIDTH: Final = 110
_NAMES: Final = 48
"""Columns for the table's names."""
_AMOUNT: Final = 11
_CPU_LENGTH: Final = 8192
"""The default length of sequences for which the screen proposes a pod's memory."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its source."""

    uri: str
    revision: str
    """Empty if the source has none."""
    facts: ModelFacts
    is_whole: bool = True
    """Whether all headers were read. Otherwise the numbers are those that config.json describes."""


def render_screen(model: Model, settings: Settings, accelerator: Accelerator) -> list[str]:
    """Return the lines for one accelerator: the model, the parts of its memory, and the verdict."""
    verdict = judge(model.facts, settings, accelerator)
    lines = [*_describe_model(model), ""]
    if verdict.plan is not None:
        lines += [*_describe_plan(model.facts, settings, accelerator, verdict.plan), ""]
    return [*lines, *_wrap(_conclude(verdict))]


def render_overview(model: Model, settings: Settings, gpus: Sequence[Accelerator]) -> list[str]:
    """Return the lines without a named accelerator: one for each of some GPUs, and one for CPUs."""
    facts, lines = model.facts, [*_describe_model(model), ""]
    verdict = judge(facts, settings, None)
    if verdict.answer is Answer.UNSUPPORTED and settings.weights == FROM_CHECKPOINT:
        return [*lines, *_wrap(_conclude(verdict))]
    gpu_settings = replace(settings, weights=FROM_CHECKPOINT)
    lines += [*_wrap(_describe_parts(facts, gpu_settings)), ""]
    rows = [(gpu.name, show_gib(gpu.memory_bytes), _sum_up(facts, settings, gpu)) for gpu in gpus]
    rows.append((CPU, "", _sum_up_cpu(facts, settings)))
    width = max(len(name) for name, _, _ in rows) + 2
    for name, amount, text in rows:
        head = f"{name:<{width}}{amount:>{_AMOUNT}}  "
        lines += _wrap(text, head)
    return lines


def render_json(model: Model, settings: Settings, accelerators: Sequence[Accelerator]) -> str:
    """Return the same as one JSON object, with amounts in bytes."""
    answers = [_describe_answer(model.facts, settings, one) for one in accelerators]
    facts = json.loads(model.facts.to_json())
    values = {"uri": model.uri, "revision": model.revision, "is_whole": model.is_whole}
    values |= {"facts": facts, "settings": asdict(settings)}
    return json.dumps(values | {"accelerators": answers}, indent=2)


def _describe_answer(facts: ModelFacts, settings: Settings, accelerator: Accelerator) -> dict[str, Any]:
    verdict = judge(facts, settings, accelerator)
    named = {"name": accelerator.name, "memory_bytes": accelerator.memory_bytes}
    judged = {"answer": verdict.answer, "message": verdict.message, "remedy": verdict.remedy}
    return named | judged | {"plan": None if verdict.plan is None else asdict(verdict.plan)}


def _describe_model(model: Model) -> Iterator[str]:
    facts = model.facts
    yield f"{model.uri} at {model.revision[:12]}" if model.revision else model.uri
    stored = _describe_stored(facts) if facts.stored else ""  # else nobody has read the weights
    length = f"; sequences of up to {show_count(facts.shape.max_length)} tokens" if facts.shape else ""
    architecture = facts.architecture or "no architecture"
    yield from _wrap(f"{architecture}{stored}{length}")
    if not model.is_whole:
        yield "Not all files were seen before a fetch: the parameters are those that config.json describes."


def _describe_stored(facts: ModelFacts) -> str:
    types = " and ".join(sorted(facts.stored))
    served = f", served as {facts.served_type}" if facts.shape and facts.served_type else ""
    return f", {show_parameters(facts.num_parameters)} parameters in {types}{served}"


def _describe_plan(
    facts: ModelFacts, settings: Settings, accelerator: Accelerator, plan: MemoryPlan
) -> Iterator[str]:
    count = settings.tensor_parallel
    where = (
        f"each of {count} x {accelerator.name}"
        if count > 1 and settings.device == "cuda"
        else accelerator.name
    )
    yield f"On {where}, {show_gib(plan.total)}:"
    yield ""
    rows = [row for row in _list_rows(facts, settings, plan) if row[1]]
    width = max(_NAMES, *(len(name) for name, _ in rows))
    for name, amount in rows:
        yield f"  {name:<{width}}{show_gib(amount):>{_AMOUNT}}"
    total = sum(amount for _, amount in rows)
    yield f"  {'together':<{width}}{show_gib(total):>{_AMOUNT}}"
    yield ""
    yield from _wrap(f"The KV cache takes {_describe_cache(facts, settings)}.")


def _describe_format(facts: ModelFacts, settings: Settings) -> str:
    """Return the format of the weights if it is not the served type's: ` in FP8`, or ` in Int4`."""
    if settings.weights != FROM_CHECKPOINT:
        return f" in {settings.weights}"
    return f" in {facts.kinds}" if facts.kinds else ""


def _list_rows(facts: ModelFacts, settings: Settings, plan: MemoryPlan) -> Iterator[tuple[str, int]]:
    step = f"{show_count(settings.num_sequences)} sequences, {show_count(settings.num_batched_tokens)} tokens"
    rounded = _describe_format(facts, settings)
    yield f"weights{rounded}", plan.weights
    yield "tables of angles, tokens and blocks", plan.tables
    yield f"largest step: {step}", plan.step
    yield "recorded steps", plan.recordings
    yield "text worker", plan.text
    yield "CUDA and libraries" if settings.device == "cuda" else "processes and libraries", plan.overhead
    cache = plan.cache
    if cache is None:
        yield "KV cache: no room for one sequence", 0
        return
    for group, count in zip(cache.groups, cache.num_blocks, strict=True):
        within = "" if group.window is None else f" within windows of {show_count(group.window)}"
        yield f"KV cache of {show_count(count * BLOCK_SIZE)} tokens{within}", count * group.block_bytes


def _describe_cache(facts: ModelFacts, settings: Settings) -> str:
    """Return the KV cache's memory for a token, and for sequences of full length.

    Raises ArchitectureError if so many devices can't share the model.
    """
    assert facts.shape is not None
    weights, length = facts.weigh(settings), _longest(facts, settings)
    words = f"{show_kib(weights.token_bytes)} a token"
    if any(window is not None and window < length for window in facts.shape.windows):
        words += " within the sliding window"
    words += f", {show_gib(weights.count_cache(1, length))} for a sequence of {show_count(length)}"
    if (asked := settings.max_sequences) is None:
        return words
    return f"{words}, {show_gib(weights.count_cache(asked, length))} for {show_count(asked)} of them"


def _describe_parts(facts: ModelFacts, settings: Settings) -> str:
    assert facts.shape is not None
    on_each = " on each GPU" if settings.tensor_parallel > 1 else ""
    try:
        weights = show_gib(facts.weigh(settings).most_bytes)
        return (
            f"On GPUs weights take {weights}{on_each}, and the KV cache {_describe_cache(facts, settings)}."
        )
    except ArchitectureError as error:
        return f"{error}."


def _sum_up(facts: ModelFacts, settings: Settings, gpu: Accelerator) -> str:
    """Return the verdict of a line."""
    verdict = judge(facts, settings, gpu)
    if verdict.answer is Answer.FITS:
        assert verdict.plan is not None
        assert verdict.plan.cache is not None
        return f"fits, KV cache of {show_count(verdict.plan.cache.num_tokens)} tokens"
    if verdict.answer is Answer.UNSUPPORTED:
        return verdict.message
    count = count_gpus(facts, settings, gpu)
    more = "" if count is None else f"on {count} of them"
    if verdict.answer is Answer.TIGHT:
        assert verdict.plan is not None
        assert verdict.plan.cache is not None
        room = f"fits with sequences of up to {show_count(verdict.plan.cache.max_model_length)} tokens"
        return f"{room}; all {show_count(_longest(facts, settings))} {more}" if more else room
    return f"fits {more}" if more else "does not fit"


def _longest(facts: ModelFacts, settings: Settings) -> int:
    assert facts.shape is not None
    return settings.max_model_length or facts.shape.max_length


def _sum_up_cpu(facts: ModelFacts, settings: Settings) -> str:
    """Return the memory that a pod needs, by the format of the weights."""
    assert facts.shape is not None
    length = settings.max_model_length or min(_CPU_LENGTH, facts.shape.max_length)
    needs = []
    last = None if not facts.quantized else WEIGHTS.index(settings.weights) + 1
    for weights in WEIGHTS[WEIGHTS.index(settings.weights) : last]:
        asked = replace(settings, device="cpu", weights=weights, tensor_parallel=1, max_model_length=length)
        limit = find_limit(facts, asked)
        beside = "" if weights == FROM_CHECKPOINT else f" in {weights}"
        needs += [] if limit is None else [f"{limit} GiB{beside}"]
    if not needs:
        return "does not fit"
    return f"a pod of {', '.join(needs)}, for sequences of {show_count(length)} tokens"


def _conclude(verdict: Verdict) -> str:
    text = str(verdict)
    text = f"Not served: {text}" if verdict.answer is Answer.UNSUPPORTED else f"{text[0].upper()}{text[1:]}"
    return f"{text}."


def _wrap(text: str, head: str = "") -> list[str]:
    """Return lines. The first begins with `head`, and the others are indented as far."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
