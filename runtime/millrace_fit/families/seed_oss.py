"""Seed-OSS: Llama with biases on queries, keys and values."""

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention = read_attention(
        fields.with_defaults({"head_dim": 128}),
        num_kv_heads=8,
        has_bias=fields.flag("attention_bias", default=True),
        has_output_bias=fields.flag("attention_out_bias"),
    )
    layer = LayerShape(attention, read_mlp(fields, has_bias=fields.flag("mlp_bias")))
    return read_decoder(fields, [layer] * fields.num_layers, max_length=524288)


SEED_OSS = Family("SeedOssForCausalLM", "seed_oss", parse)
