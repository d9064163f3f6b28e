"""Qwen 3's mixtures of experts: layers with a router and many small MLPs, and some with one MLP."""

from dataclasses import replace

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import (
    list_mlps,
    read_attention,
    read_decoder,
    read_experts,
    read_window,
)
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
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


# Its coders say use_qk_norm, as all of it have.
QWEN3_MOE = Family("Qwen3MoeForCausalLM", "qwen3_moe", parse, known=frozenset({"use_qk_norm"}))
