"""Qwen 1.5's and 2's mixtures of experts: beside many small MLPs one that each token goes to, with a gate."""

from collections.abc import Sequence
from dataclasses import replace

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import (
    list_mlps,
    read_attention,
    read_decoder,
    read_experts,
    read_named_windows,
    read_window,
)
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention = read_attention(fields, num_kv_heads=16, has_bias=fields.flag("qkv_bias", default=True))
    width = fields.count("moe_intermediate_size", 1408)
    experts = read_experts(fields, 60, 4, width, is_normalised=fields.flag("norm_topk_prob"))
    experts = replace(experts, shared_width=fields.count("shared_expert_intermediate_size", 5632))
    layers = [
        LayerShape(replace(attention, window=window), mlp)
        for window, mlp in zip(_read_windows(fields), list_mlps(fields, experts), strict=True)
    ]
    return read_decoder(fields, layers, max_length=32768)


def _read_windows(fields: Fields) -> Sequence[int | None]:
    """Return each layer's window. Without `layer_types` every second layer has it, the first one too."""
    window = read_window(fields, default=4096) if fields.flag("use_sliding_window") else None
    num_windowed = fields.count("max_window_layers", 28, least=0)
    if (named := read_named_windows(fields, window)) is not None:
        return named
    return [
        window if number % 2 == 0 and number < num_windowed else None for number in range(fields.num_layers)
    ]


QWEN2_MOE = Family("Qwen2MoeForCausalLM", "qwen2_moe", parse)
