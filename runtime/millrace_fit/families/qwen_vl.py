"""The text parts of Qwen 2.5 VL and of Qwen 3 VL: Qwen 2 and Qwen 3.

A position has three numbers there, for time, height and width (Bai et al., 2025). Those of a text are equal,
so its angles are those of the plain rotary embedding.
"""

from collections.abc import Mapping
from typing import Any, Final

from millrace_fit.families import qwen2, qwen3
from millrace_fit.families.family import LLAMA_NAMES, UNREAD, Family
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape

_ROPES: Final = ("rope_scaling", "rope_parameters")
_OF_PARTS: Final = frozenset({"mrope_section", "mrope_interleaved"})
"""Which of a position's numbers each angle is of."""


def parse_qwen25(fields: Fields) -> DecoderShape:
    """Return the shape of Qwen 2.5 VL's text part."""
    return qwen2.parse(_read_as_text(fields))


def parse_qwen3(fields: Fields) -> DecoderShape:
    """Return the shape of Qwen 3 VL's text part."""
    return qwen3.parse(_read_as_text(fields))


def _read_as_text(fields: Fields) -> Fields:
    """Return the fields with the rotary embedding that a text has."""
    ropes = {name: rope for name in _ROPES if isinstance(rope := fields.raw.get(name), Mapping)}
    return Fields({**fields.raw, **{name: _flatten(rope) for name, rope in ropes.items()}})


def _flatten(rope: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in rope.items() if name not in _OF_PARTS}
    return {name: "default" if value == "mrope" else value for name, value in kept.items()}


QWEN25_VL = Family(
    "Qwen2_5_VLForConditionalGeneration",
    parse_qwen25,
    beside=("visual.",),
    text_field="text_config",
    may_be_flat=True,
)

_MODEL, _TEXT = "model.", "model.language_model."
QWEN3_VL = Family(
    "Qwen3VLForConditionalGeneration",
    parse_qwen3,
    names={part: name.replace(_MODEL, _TEXT, 1) for part, name in LLAMA_NAMES.items()},
    unread=tuple(name.replace(_MODEL, _TEXT, 1) for name in UNREAD),
    beside=("model.visual.",),
    text_field="text_config",
)
