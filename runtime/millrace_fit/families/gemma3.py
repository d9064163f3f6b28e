"""Gemma 3: layers with a window, which have a rotary base of their own, between those without (2025).

Attention and MLP are normed before and after, the gate is GELU, and files have the scales of norms less one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from millrace_fit.declaration.family import LLAMA_NAMES, Family
from millrace_fit.declaration.parts import (
    read_attention,
    read_decoder,
    read_mlp,
    read_named_windows,
    read_window,
)
from millrace_fit.declaration.rope import ORIGINAL
from millrace_fit.errors import ArchitectureError
from millrace_fit.families.mistral import MISTRAL3
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape

_ACTIVATION: Final = ("hidden_activation", "gelu_pytorch_tanh")
_PLAIN: Final = "default"
_DEFAULTS: Final[Mapping[str, Any]] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    fields = fields.with_defaults(_DEFAULTS)
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, has_head_norms=True, has_bias=bias, has_output_bias=bias)
    attention = replace(attention, scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5)
    near = replace(attention, theta=_read_near_theta(fields))
    mlp = replace(read_mlp(fields), is_gelu=True)
    layers = [
        LayerShape(attention if window is None else replace(near, window=window), mlp, is_normed_twice=True)
        for window in _read_windows(fields)
    ]
    shape = read_decoder(
        _with_far_rope(fields), layers, theta=1e6, max_length=131072, is_tied=True, activation=_ACTIVATION
    )
    return replace(shape, embedding_factor=math.sqrt(shape.width), are_norms_less_one=True)


def _read_windows(fields: Fields) -> Sequence[int | None]:
    """Return each layer's window: without `layer_types` every sixth has none. Raises ArchitectureError."""
    window = read_window(fields, default=4096)
    if (named := read_named_windows(fields, window)) is not None:
        return named
    if window is None:
        raise ArchitectureError(
            "config.json has sliding_window None, and without layer_types most layers have one: set it"
        )
    period = fields.count("sliding_window_pattern", 6)
    return [None if (number + 1) % period == 0 else window for number in range(fields.num_layers)]


def _read_near_theta(fields: Fields) -> float:
    """Return the base of layers with a window, in either spelling. It has no scaling."""
    rope = _find_rope(fields, "sliding_attention")
    if rope.get("rope_type", rope.get("type", _PLAIN)) != _PLAIN:
        raise ArchitectureError(
            f"config.json has the rotary embedding {rope!r} for sliding_attention; only that of the type "
            "default is supported there"
        )
    return Fields(rope).number("rope_theta", fields.number("rope_local_base_freq", 10000.0))


def _with_far_rope(fields: Fields) -> Fields:
    """Return the fields with the rotary embedding of layers without a window as that of all.

    As in transformers: an older `rope_scaling` adds to it, and a length outside of it does not count.
    """
    older = fields.raw.get("rope_scaling") or {}
    if not isinstance(older, Mapping):
        return fields
    rope = {**_find_rope(fields, "full_attention"), **older}
    return Fields({**fields.raw, "rope_parameters": rope, "rope_scaling": None, ORIGINAL: None})


def _find_rope(fields: Fields, kind: str) -> Mapping[str, Any]:
    """Return what `rope_parameters` has for a kind of layers. Raises ArchitectureError."""
    name, rope = "rope_parameters", fields.raw.get("rope_parameters") or {}
    if isinstance(rope, Mapping):
        name, rope = kind, rope.get(kind) or {}
    if not isinstance(rope, Mapping):
        raise ArchitectureError(f"config.json has {name} {rope!r}; it must be an object")
    return rope


_NAMES: Final[Mapping[str, str]] = {
    **LLAMA_NAMES,
    "attention_output_norm": "model.layers.{layer}.post_attention_layernorm",
    "mlp_norm": "model.layers.{layer}.pre_feedforward_layernorm",
    "mlp_output_norm": "model.layers.{layer}.post_feedforward_layernorm",
}
_KNOWN: Final = frozenset(
    {"hidden_activation", "query_pre_attn_scalar", "sliding_window_pattern", "rope_local_base_freq"}
)
GEMMA3_TEXT = Family("Gemma3ForCausalLM", "gemma3_text", parse, names=_NAMES, known=_KNOWN)
GEMMA3 = MISTRAL3._replace(
    architecture="Gemma3ForConditionalGeneration",
    model_type="gemma3",
    parse=parse,
    names={part: f"language_model.{name}" for part, name in _NAMES.items()},
    text_types=("gemma3_text",),
    known=_KNOWN,
)
