"""The part of the autoscaler's memory that outlives the operator, as JSON-ready values. Pure.

It has only what stays true while no operator looks: a replica's speed, the shape of requests, the time of a
cold start. It has no momentary state, so a new leader still holds the count before it lowers one.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from millrace_operator.autoscaler.capacity.latency_model import FORGETTING, LatencyModel
from millrace_operator.autoscaler.decide.feedback import LARGEST_CORRECTION
from millrace_operator.autoscaler.decide.forecast import LARGEST_ERROR, ForecastError, Outlook
from millrace_operator.autoscaler.decide.memory import COLD_STARTS_KEPT, LONGEST_COLD_START, Memory
from millrace_operator.autoscaler.decide.trend import LARGEST_DISPERSION
from millrace_operator.autoscaler.signals.lengths import ANSWERS_AVERAGED, AnswerLengths
from millrace_operator.autoscaler.signals.savings import Drafts, PrefixHits
from millrace_runtime.contract import ANSWER_BUCKETS

PRIOR = "prior"
"""Its key in the annotation; the value is JSON."""
VERSION = 1
LONGEST_TEXT = 16_000
"""Characters; ours have 3,000."""
LARGEST = 1e15
"""No real figure comes near it, and its square is still a number."""
LEAST_SIZE = 1e-3
"""Tokens or sequences; means of requests are above it."""
LONGEST_STEP = 3600.0
"""Seconds, of a coefficient of the model. No replica with a larger one could serve."""
ROUNDING = 1e-6
"""The rounding error of a matrix scaled to ones on its diagonal."""
LONGEST_HISTOGRAM = 200
"""The most buckets of any version."""
MOVED = 0.1
"""A figure has moved if it changed by more than this part."""
SAMPLES_KNOWN = 1 / FORGETTING
"""With so many samples each new one replaces an old one."""
MOVED_ERROR = 0.2
"""The same for the forecast error's quantile, which moves by a quarter of this with each forecast."""


class PriorError(ValueError):
    """The prior cannot be used; the text says why."""


def render_prior(memory: Memory, accelerator: str) -> dict[str, Any]:
    """Return the prior of a memory. `accelerator` describes the hardware of its replicas."""
    model = memory.model
    return {
        "version": VERSION,
        "revision": memory.revision,
        "accelerator": accelerator,
        "model": {
            "gram": [list(row) for row in model.gram],
            "moment": list(model.moment),
            "samples": model.num_samples,
            "tried": model.num_tried,
            "relativeError": model.relative_error,
            "doubted": model.changes is not None,
        },
        "promptTokens": memory.prompt_tokens,
        "generationTokens": memory.generation_tokens,
        "answerLengths": _render_lengths(memory.answer_lengths),
        "contextTokens": memory.context_tokens,
        "prefixHits": asdict(memory.prefix_hits) if memory.prefix_hits else None,
        "drafts": asdict(memory.drafts) if memory.drafts else None,
        "maxSequences": memory.max_sequences,
        "kvTokens": memory.kv_tokens,
        "forecastError": memory.outlook.error.quantile,
        "dispersion": memory.outlook.dispersion,
        "busyLoad": memory.outlook.busy_load,
        "correction": memory.correction,
        "coldStartSeconds": list(memory.cold_starts),
    }


def _render_lengths(lengths: AnswerLengths | None) -> dict[str, Any] | None:
    if lengths is None:
        return None
    return {"shares": [round(share, 6) for share in lengths.shares], "answers": round(lengths.answers, 1)}


def parse_prior(text: str) -> dict[str, Any]:
    """Return the values of a text. Raises PriorError if it is no JSON object."""
    if len(text) > LONGEST_TEXT:
        raise PriorError(f"it has {len(text)} characters, and the operator writes at most {LONGEST_TEXT}")
    try:
        prior = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PriorError(f"it is no JSON: {error}") from error
    if not isinstance(prior, dict):
        raise PriorError("it is no JSON object")
    return prior


def read_prior(prior: Mapping[str, Any], revision: str | None, accelerator: str | None) -> Memory | None:
    """Return the memory to start with; None if the prior is of another accelerator.

    A model of another revision is distrusted. None for revision or accelerator means that the present one is
    unknown: then the prior counts as it is, and `remember` may distrust it later. Raises PriorError for bad
    values: anybody who may write ControllerRevisions may have written them.
    """
    if prior.get("version") != VERSION:
        raise PriorError(f"its version is {prior.get('version')!r:.40}, and this operator reads {VERSION}")
    if accelerator is not None and prior.get("accelerator") != accelerator:
        return None
    memory = Memory(
        model=_read_model(prior),
        revision=_read_revision(prior),
        outlook=_read_outlook(prior),
        prompt_tokens=_read_size(prior, "promptTokens"),
        generation_tokens=_read_size(prior, "generationTokens"),
        answer_lengths=_read_lengths(prior),
        context_tokens=_read_size(prior, "contextTokens"),
        prefix_hits=_read_hits(prior),
        drafts=_read_drafts(prior),
        max_sequences=_read_size(prior, "maxSequences"),
        kv_tokens=_read_size(prior, "kvTokens"),
        cold_starts=_read_cold_starts(prior),
        has_served=True,
        correction=_read_number(prior, "correction", 1.0, LARGEST_CORRECTION),
    )
    if revision is None or revision == memory.revision:
        return memory
    return replace(memory, revision=revision, model=memory.model.distrust())


def _read_outlook(prior: Mapping[str, Any]) -> Outlook:
    return Outlook(
        dispersion=_read_number({"dispersion": 1.0, **prior}, "dispersion", 1.0, LARGEST_DISPERSION),
        error=ForecastError(_read_number(prior, "forecastError", 0.0, LARGEST_ERROR)),
        busy_load=_read_number({"busyLoad": 0.0, **prior}, "busyLoad", 0.0),
    )


def note_present(memory: Memory, pods: Collection[str], now: float) -> Memory:
    """Return the memory with these pods as Ready before, so they are no new cold starts.

    If the memory has no cold start yet, these pods' starts count, because no others are known.
    """
    if not memory.cold_starts:
        return memory
    return replace(memory, ready_since=dict.fromkeys(pods, now), started=frozenset(pods))


def has_moved(before: Memory | None, after: Memory) -> bool:
    """Whether the prior has changed: a figure by more than a tenth."""
    if before is None or before.revision != after.revision:
        return True
    if before.model.is_proven != after.model.is_proven:
        return True
    if abs(before.outlook.error.quantile - after.outlook.error.quantile) > MOVED_ERROR:
        return True
    pairs = zip(_list_figures(before), _list_figures(after), strict=True)
    return any(_differ(*pair) for pair in pairs)


def _list_figures(memory: Memory) -> tuple[float | None, ...]:
    return (
        *memory.model.coefficients,
        min(memory.model.num_samples, SAMPLES_KNOWN),
        memory.prompt_tokens,
        memory.generation_tokens,
        memory.answer_lengths.quantile(0.95) if memory.answer_lengths else None,
        memory.context_tokens,
        1 + (memory.prefix_hits.share if memory.prefix_hits else 0.0),
        memory.drafts.written_per_step(1.0) if memory.drafts else 1.0,
        memory.max_sequences,
        memory.kv_tokens,
        memory.correction,
        memory.outlook.dispersion,
        memory.cold_start_seconds,
    )


def _differ(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(before - after) > MOVED * max(abs(before), abs(after))


def _read_model(prior: Mapping[str, Any]) -> LatencyModel:
    model = prior.get("model")
    if not isinstance(model, dict):
        raise PriorError("it has no model")
    gram = [_read_row(row) for row in _read_list(model, "gram", 3)]
    moment = _read_row(_read_list(model, "moment", 3))
    if len(gram) != 3 or not _is_positive_semidefinite(gram):
        raise PriorError("its gram is not symmetric and positive semi-definite")
    samples, error = _read_number(model, "samples", 0.0), _read_optional(model, "relativeError")
    tried = _read_number({"tried": 0.0, **model}, "tried", 0.0, samples)
    found = LatencyModel.restore((gram[0], gram[1], gram[2]), moment, samples, error, tried)
    if model.get("doubted") is True:
        found = replace(found, changes=(), distrusted_at=samples)
    if max(found.coefficients) > LONGEST_STEP:
        raise PriorError(f"by its model a step takes {max(found.coefficients):.3g} s or more")
    return found


def _read_row(values: Any) -> tuple[float, float, float]:
    if not isinstance(values, list) or len(values) != 3 or not all(_is_finite(value) for value in values):
        raise PriorError("its model is not made of rows of three finite numbers")
    return float(values[0]), float(values[1]), float(values[2])


def _is_positive_semidefinite(gram: Sequence[Sequence[float]]) -> bool:
    """Whether all principal minors are at least zero."""
    size = [math.sqrt(gram[i][i]) if gram[i][i] > 0 else 0.0 for i in range(3)]
    if any(gram[i][i] < 0 for i in range(3)):
        return False
    if any(not size[i] and any(gram[i]) for i in range(3)):
        return False
    unit = [[gram[i][j] / ((size[i] * size[j]) or 1.0) for j in range(3)] for i in range(3)]
    pairs = ((0, 1), (0, 2), (1, 2))
    if any(abs(unit[i][j] - unit[j][i]) > ROUNDING or abs(unit[i][j]) > 1 + ROUNDING for i, j in pairs):
        return False
    a, b, c = (unit[i][j] for i, j in pairs)
    return not all(size) or 1 + 2 * a * b * c - a * a - b * b - c * c >= -ROUNDING


def _read_lengths(prior: Mapping[str, Any]) -> AnswerLengths | None:
    """Return the answers' lengths; None if there are none, or they have other bounds than ours."""
    lengths = prior.get("answerLengths")
    if lengths is None:
        return None
    if not isinstance(lengths, dict):
        raise PriorError("its answerLengths are no object")
    shares = _read_list(lengths, "shares", LONGEST_HISTOGRAM)
    if not all(_is_finite(share) and 0 <= share <= 1 for share in shares) or shares != sorted(shares):
        raise PriorError("its shares do not rise from 0 to 1")
    answers = _read_number(lengths, "answers", 0.0, ANSWERS_AVERAGED)
    if len(shares) != len(ANSWER_BUCKETS):
        return None
    return AnswerLengths(tuple(float(share) for share in shares), answers)


def _read_hits(prior: Mapping[str, Any]) -> PrefixHits | None:
    if (hits := _read_object(prior, "prefixHits")) is None:
        return None
    return PrefixHits(_read_number(hits, "share", 0.0, 1.0), _read_number(hits, "requests", 0.0))


def _read_drafts(prior: Mapping[str, Any]) -> Drafts | None:
    if (drafts := _read_object(prior, "drafts")) is None:
        return None
    drafted, accepted = (_read_number(drafts, name, 0.0) for name in ("drafted", "accepted"))
    return Drafts(_read_number(drafts, "sequences", LEAST_SIZE), drafted, accepted)


def _read_object(values: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    found = values.get(name)
    if found is not None and not isinstance(found, dict):
        raise PriorError(f"its {name} is no object")
    return found


def _read_revision(prior: Mapping[str, Any]) -> str | None:
    revision = prior.get("revision")
    if revision is not None and not isinstance(revision, str):
        raise PriorError("its revision is no text")
    return revision


def _read_cold_starts(prior: Mapping[str, Any]) -> tuple[float, ...]:
    seconds = _read_list(prior, "coldStartSeconds", COLD_STARTS_KEPT)
    if not all(_is_finite(one) and 0 <= one <= LONGEST_COLD_START for one in seconds):
        raise PriorError("its coldStartSeconds are not all between 0 and an hour")
    return tuple(float(one) for one in seconds)


def _read_list(values: Mapping[str, Any], name: str, most: int) -> list[Any]:
    found = values.get(name)
    if not isinstance(found, list) or len(found) > most:
        raise PriorError(f"its {name} is no list of at most {most}")
    return found


def _read_size(values: Mapping[str, Any], name: str) -> float | None:
    return _read_optional(values, name, LEAST_SIZE)


def _read_optional(values: Mapping[str, Any], name: str, least: float = 0.0) -> float | None:
    return None if values.get(name) is None else _read_number(values, name, least)


def _read_number(values: Mapping[str, Any], name: str, least: float, most: float = LARGEST) -> float:
    value = values.get(name)
    if not _is_finite(value) or not least <= float(value) <= most:  # type: ignore[arg-type]
        raise PriorError(f"its {name} is no number from {least:g} to {most:g}")
    return float(value)  # type: ignore[arg-type]


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that is not too large to compute with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
