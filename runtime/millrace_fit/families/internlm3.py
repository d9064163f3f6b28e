"""InternLM 3: Llama with biases under other names."""

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape. transformers has Llama's names of the biases, and takes these two for them."""
    bias = fields.flag("bias", default=fields.flag("mlp_bias"))
    attention = read_attention(
        fields.with_defaults({"head_dim": 128}),
        num_kv_heads=2,
        has_bias=fields.flag("qkv_bias", default=fields.flag("attention_bias")),
        has_output_bias=bias,
    )
    layers = [LayerShape(attention, read_mlp(fields, has_bias=bias))] * fields.num_layers
    return read_decoder(fields, layers, max_length=32768, epsilon=1e-5)


# The repository's own code computes what transformers' Llama does.
INTERNLM3 = Family("InternLM3ForCausalLM", "internlm3", parse, known=frozenset({"auto_map"}))
