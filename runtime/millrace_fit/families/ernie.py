"""ERNIE 4.5: Llama that turns neighbouring pairs of each head."""

from dataclasses import replace

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    bias = fields.flag("use_bias")
    attention = read_attention(
        fields.with_defaults({"head_dim": 128}), num_kv_heads=2, has_bias=bias, has_output_bias=bias
    )
    layer = LayerShape(replace(attention, is_interleaved=True), read_mlp(fields, has_bias=bias))
    layers = [layer] * fields.num_layers
    return read_decoder(fields, layers, theta=5e5, max_length=131072, epsilon=1e-5, is_tied=True)


ERNIE = Family("Ernie4_5ForCausalLM", "ernie4_5", parse)
