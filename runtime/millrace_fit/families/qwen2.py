"""Qwen 2, 2.5 and MiMo: Llama with biases on queries, keys and values, and windows in the later layers."""

from dataclasses import replace

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp, read_qwen_windows
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention, mlp = read_attention(fields, num_kv_heads=32, has_bias=True), read_mlp(fields)
    windows = read_qwen_windows(fields)
    layers = [LayerShape(replace(attention, window=window), mlp) for window in windows]
    return read_decoder(fields, layers, max_length=32768)


QWEN2 = Family("Qwen2ForCausalLM", "qwen2", parse)
# Its author's own code is Qwen 2's, with layers beside that guess tokens.
MIMO = Family("MiMoForCausalLM", "mimo", parse, beside=("model.mtp_layers.",), known=frozenset({"auto_map"}))
