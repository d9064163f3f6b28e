"""The text parts of Qwen 2 VL, 2.5 VL and 3 VL: Qwen 2, Qwen 3 and its mixtures, with other defaults.

A position has three numbers there, for time, height and width (Bai et al., 2025). Those of a text are equal,
so its angles are those of the plain rotary embedding.
"""

from collections.abc import Mapping
from typing import Any, Final

from millrace_fit.declaration.family import LLAMA_NAMES, UNREAD, Family
from millrace_fit.declaration.layout import Joined
from millrace_fit.families import qwen2, qwen3, qwen_moe
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape

_ROPES: Final = ("rope_scaling", "rope_parameters")
_OF_PARTS: Final = frozenset({"mrope_section", "mrope_interleaved"})
"""Which of a position's numbers each angle is of."""
_DEFAULTS_2: Final[Mapping[str, Any]] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_window_layers": 80,
}
_DEFAULTS_3: Final[Mapping[str, Any]] = {"max_position_embeddings": 128000, "rope_theta": 5e5}
_DEFAULTS_MOE: Final[dict[str, Any]] = {
    **_DEFAULTS_3,
    "num_key_value_heads": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
}
_ALWAYS: Final[Mapping[str, Any]] = {"norm_topk_prob": True}
"""What transformers reads no field for."""
_WINDOWS: Final = ("use_sliding_window", "max_window_layers", "layer_types")


def parse_qwen2(fields: Fields) -> DecoderShape:
    """Return the shape of Qwen 2 VL's or 2.5 VL's text part."""
    return qwen2.parse(_read_as_text(fields).with_defaults(_DEFAULTS_2))


def parse_qwen3(fields: Fields) -> DecoderShape:
    """Return the shape of Qwen 3 VL's text part. It has no windows: transformers reads no field of them."""
    plain = Fields({name: value for name, value in fields.raw.items() if name not in _WINDOWS})
    return qwen3.parse(_read_as_text(plain).with_defaults(_DEFAULTS_3))


def parse_qwen3_moe(fields: Fields) -> DecoderShape:
    """Return the shape of the text part of a Qwen 3 VL with experts."""
    plain = Fields({name: value for name, value in fields.raw.items() if name not in _WINDOWS})
    count = {} if fields.has("num_local_experts") else {"num_experts": 60}
    defaults = _DEFAULTS_MOE | count
    return qwen_moe.parse_qwen3(Fields({**_read_as_text(plain).with_defaults(defaults).raw, **_ALWAYS}))


def _read_as_text(fields: Fields) -> Fields:
    """Return the fields with the rotary embedding that a text has."""
    ropes = {name: rope for name in _ROPES if isinstance(rope := fields.raw.get(name), Mapping)}
    return Fields({**fields.raw, **{name: _flatten(rope) for name, rope in ropes.items()}})


def _flatten(rope: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in rope.items() if name not in _OF_PARTS}
    return {name: "default" if value == "mrope" else value for name, value in kept.items()}


QWEN25_VL = Family(
    "Qwen2_5_VLForConditionalGeneration",
    "qwen2_5_vl",
    parse_qwen2,
    spellings=(
        {"model.language_model.": "model.", "model.visual.": "visual."},
        {"language_model.": "model."},
    ),
    beside=("visual.",),
    text_field="text_config",
    text_types=("qwen2_5_vl_text", "qwen2_5_vl"),
    may_be_flat=True,
    is_tied_by_text=True,
)
QWEN2_VL = QWEN25_VL._replace(
    architecture="Qwen2VLForConditionalGeneration",
    model_type="qwen2_vl",
    text_types=("qwen2_vl_text", "qwen2_vl"),
)

_MODEL, _TEXT = "model.", "model.language_model."
QWEN3_VL = Family(
    "Qwen3VLForConditionalGeneration",
    "qwen3_vl",
    parse_qwen3,
    names={part: name.replace(_MODEL, _TEXT, 1) for part, name in LLAMA_NAMES.items()},
    spellings=({"language_model.": _TEXT, "visual.": "model.visual."},),
    unread=tuple(name.replace(_MODEL, _TEXT, 1) for name in UNREAD),
    beside=("model.visual.",),
    text_field="text_config",
    text_types=("qwen3_vl_text",),
    known=frozenset({"use_qk_norm"}),
)
_EXPERTS = f"{_TEXT}layers.{{layer}}.mlp.experts."
QWEN3_VL_MOE = QWEN3_VL._replace(
    architecture="Qwen3VLMoeForConditionalGeneration",
    model_type="qwen3_vl_moe",
    parse=parse_qwen3_moe,
    layout=(
        Joined(f"{_EXPERTS}gate_up_proj", ("expert_gate", "expert_up"), has_experts=True),
        Joined(f"{_EXPERTS}down_proj", ("expert_down",), has_experts=True),
    ),
    text_types=("qwen3_vl_moe_text",),
)
