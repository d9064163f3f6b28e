"""Reads the rotary position embedding of a config.json."""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import MAX_COUNT, Fields
from millrace_fit.rotary import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RotaryScaling,
    YarnScaling,
)

ORIGINAL: Final = "original_max_position_embeddings"
_LONGEST: Final = "max_sequence_length"
_BETA: Final = "llama_4_scaling_beta"
PARTIAL: Final = "partial_rotary_factor"
_OLDER: Final[Mapping[str, str]] = {"su": "longrope"}
"""Names of the first Phi 3."""
KEYS: Final[Mapping[str, frozenset[str]]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", ORIGINAL}),
    "yarn": frozenset(
        {
            "factor",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "attn_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
            ORIGINAL,
            _BETA,
            "max_position_embeddings",
        }
    ),
    "longrope": frozenset({"short_factor", "long_factor", "factor", "attention_factor", ORIGINAL}),
}
"""The numbers of each kind of rotary scaling. A dynamic one begins after the model's own length, which no
sequence exceeds."""


class Rope(NamedTuple):
    """The base and the scaling of the angles, and the positions for which both are made."""

    theta: float
    scaling: RotaryScaling | None
    max_length: int


def read_rope(fields: Fields, theta: float, max_length: int, *, may_be_partial: bool) -> Rope:
    """Return base, scaling and length, from rope_theta with rope_scaling or from the newer rope_parameters.

    If a config has both spellings, transformers reads only the older one. `theta` and `max_length` are the
    family's own, for a config without them. Raises ArchitectureError.
    """
    raw, rope = fields.raw, _find_rope(fields)
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    kind = _OLDER.get(kind, kind)
    if kind not in KEYS:
        *others, last = (f'"{name}"' for name in KEYS)
        raise ArchitectureError(
            f'config.json has rope_type "{kind}"; supported are {", ".join(others)} and {last}'
        )
    _refuse_unread(rope, kind)
    if not may_be_partial:
        _refuse_partial(rope)
        _refuse_partial(raw)
    length = fields.count("max_position_embeddings", max_length)
    base = (fields if rope.get("rope_theta") is None else Fields(rope)).number("rope_theta", theta)
    scaling = _read_scaling(Fields(rope), kind, _find_original(fields, rope, length), length)
    length = _lengthen(fields, length, scaling)
    if rope.get(_BETA):
        # Queries after the original length are scaled by their positions, which no operation does.
        length = min(length, _find_original(fields, rope, length))
    return Rope(base, scaling, min(length, _find_trained(raw) or length))


def read_rotary_dim(fields: Fields, head_dim: int, default: float) -> int | None:
    """Return how many of a head's numbers are turned; None: all. Raises ArchitectureError."""
    rope = Fields(_find_rope(fields))
    factor = (rope if rope.has(PARTIAL) else fields).number(PARTIAL, default)
    turned = int(head_dim * factor)
    if turned % 2 or not 0 < turned <= head_dim:
        raise ArchitectureError(
            f"config.json has {PARTIAL} {factor}, which turns {turned} of a head's {head_dim} numbers: it "
            "must turn an even count of them"
        )
    return None if turned == head_dim else turned


def _find_rope(fields: Fields) -> Mapping[str, Any]:
    rope = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise ArchitectureError(f"config.json has the rotary scaling {rope!r}; it must be an object")
    return rope


def _lengthen(fields: Fields, length: int, scaling: RotaryScaling | None) -> int:
    """Return the length that a scaling is made for."""
    if isinstance(scaling, YarnScaling):
        # As vLLM does: people add YaRN to a config and leave its length as it was.
        return max(length, min(MAX_COUNT, int(scaling.factor * scaling.original_length)))
    if isinstance(scaling, LinearScaling):
        # Vicuna's name for it. A coder of DeepSeek's has no such field, and has its whole length already.
        return max(length, min(fields.count(_LONGEST, length), int(scaling.factor * length)))
    return length


def _find_trained(raw: Mapping[str, Any]) -> int | None:
    """Return the length that Qwen 2.5's models of a million tokens have without their own attention."""
    chunks = raw.get("dual_chunk_attention_config")
    if not isinstance(chunks, Mapping):
        return None
    return Fields(chunks).count(ORIGINAL, MAX_COUNT)


def _find_original(fields: Fields, rope: Mapping[str, Any], length: int) -> int:
    """Return the length before the scaling. Outside of the scaling's object it counts more."""
    if fields.has(ORIGINAL):
        return fields.count(ORIGINAL)
    return Fields(rope).count(ORIGINAL, length)


def _read_scaling(rope: Fields, kind: str, original: int, length: int) -> RotaryScaling | None:
    match kind:
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return _read_llama3(rope, original)
        case "yarn":
            return _read_yarn(rope, original)
        case "longrope":
            return _read_longrope(rope, original, length)
    return None


def _read_llama3(rope: Fields, original: int) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise ArchitectureError(
            f"config.json has low_freq_factor {low} and high_freq_factor {high}: the first must be lower"
        )
    return Llama3Scaling(rope.number("factor"), low, high, original)


def _read_yarn(rope: Fields, original: int) -> YarnScaling:
    factor = rope.number("factor")
    fast = rope.number("beta_fast") if rope.has("beta_fast") else 32.0
    slow = rope.number("beta_slow") if rope.has("beta_slow") else 1.0
    if slow > fast:
        raise ArchitectureError(
            f"config.json has beta_fast {fast} and beta_slow {slow}: the second must not be higher"
        )
    # null is false there, as in transformers.
    is_truncated = rope.flag("truncate", default="truncate" not in rope)
    magnitude = _read_magnitude(rope, factor)
    return YarnScaling(factor, fast, slow, original, magnitude=magnitude, is_truncated=is_truncated)


def _read_longrope(rope: Fields, original: int, length: int) -> LongRopeScaling:
    """Return the scaling. Its magnitude is sqrt(1 + ln(factor) / ln(original length)), as in the paper."""
    factor = rope.number("factor", length / original)
    magnitude = 1.0
    if rope.has("attention_factor"):
        magnitude = rope.number("attention_factor")
    elif factor > 1 and original > 1:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(original, magnitude, rope.numbers("short_factor"), rope.numbers("long_factor"))


def _read_magnitude(rope: Fields, factor: float) -> float:
    """Return the factor of cosines and sines; its default is the paper's 0.1 ln(factor) + 1.

    `attn_factor` multiplies the default, as vLLM reads it: DeepSeek's Qwen 3 is made for it.
    """
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    if rope.raw.get("mscale") and rope.raw.get("mscale_all_dim"):
        one, all_dimensions = rope.number("mscale"), rope.number("mscale_all_dim")
        return _scale(factor, one) / _scale(factor, all_dimensions)
    return _scale(factor, 1.0) * rope.number("attn_factor", 1.0)


def _scale(factor: float, strength: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


def _refuse_unread(rope: Mapping[str, Any], kind: str) -> None:
    """Raise ArchitectureError for an unread number that would change the angles."""
    read = KEYS[kind] | {"rope_type", "type", "rope_theta", PARTIAL, "finetuned"}
    for name in sorted(rope.keys() - read):
        if rope[name] is not None:
            raise ArchitectureError(
                f'config.json has {name} {rope[name]!r} for rope_type "{kind}", which is not supported'
            )


def _refuse_partial(raw: Mapping[str, Any]) -> None:
    if (factor := raw.get(PARTIAL)) not in (None, 1):
        raise ArchitectureError(f"config.json has {PARTIAL} {factor!r}; only 1 is supported")
