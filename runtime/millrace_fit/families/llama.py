"""Llama 1 to 3, and all that is built like it (Touvron et al., 2023)."""

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    has_bias = fields.flag("attention_bias")
    attention = read_attention(fields, has_bias=has_bias, has_output_bias=has_bias)
    layer = LayerShape(attention, read_mlp(fields, has_bias=fields.flag("mlp_bias")))
    # transformers' mask ignores it, but its cache drops the keys outside it: no answer is the right one.
    fields.refuse("sliding_window", unless=(None,), advice="a Llama has no window: remove the field")
    return read_decoder(fields, [layer] * fields.num_layers, max_length=2048)


LLAMA = Family("LlamaForCausalLM", "llama", parse)
