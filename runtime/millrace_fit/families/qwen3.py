"""Qwen 3: Llama with a norm of each head of queries and keys (Yang et al., 2025)."""

from dataclasses import replace

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp, read_qwen_windows
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    bias = fields.flag("attention_bias")
    attention = read_attention(
        fields, num_kv_heads=32, head_dim=128, has_head_norms=True, has_bias=bias, has_output_bias=bias
    )
    mlp, windows = read_mlp(fields), read_qwen_windows(fields)
    layers = [LayerShape(replace(attention, window=window), mlp) for window in windows]
    return read_decoder(fields, layers, max_length=32768)


QWEN3 = Family("Qwen3ForCausalLM", "qwen3", parse, known=frozenset({"use_qk_norm"}))
