"""Qwen's mixtures of experts: layers with a router and many small MLPs, and some with one MLP.

Those of Qwen 1.5 and 2 have an MLP beside the experts, to which each token goes, with a gate of its own.
"""

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


def parse_qwen2(fields: Fields) -> DecoderShape:
    """Return the shape of Qwen 1.5's and 2's."""
    attention = read_attention(fields, num_kv_heads=16, has_bias=fields.flag("qkv_bias", default=True))
    width = fields.count("moe_intermediate_size", 1408)
    experts = read_experts(fields, 60, 4, width, is_normalised=fields.flag("norm_topk_prob"))
    experts = replace(experts, shared_width=fields.count("shared_expert_intermediate_size", 5632))
    layers = [
        LayerShape(replace(attention, window=window), mlp)
        for window, mlp in zip(_read_windows(fields), list_mlps(fields, experts), strict=True)
    ]
    return read_decoder(fields, layers, max_length=32768)


def parse_qwen3(fields: Fields) -> DecoderShape:
    """Return the shape of Qwen 3's."""
    bias = fields.flag("attention_bias")
    attention = read_attention(
        fields, num_kv_heads=4, has_head_norms=True, has_bias=bias, has_output_bias=bias
    )
    if fields.flag("use_sliding_window"):
        attention = replace(attention, window=read_window(fields, default=4096))
    width = fields.count("moe_intermediate_size", 768)
    experts = read_experts(fields, 128, 8, width, is_normalised=fields.flag("norm_topk_prob"))
    layers = [LayerShape(attention, mlp) for mlp in list_mlps(fields, experts)]
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


QWEN2_MOE = Family("Qwen2MoeForCausalLM", "qwen2_moe", parse_qwen2)
# Its coders say use_qk_norm, as all of it have.
QWEN3_MOE = Family("Qwen3MoeForCausalLM", "qwen3_moe", parse_qwen3, known=frozenset({"use_qk_norm"}))
