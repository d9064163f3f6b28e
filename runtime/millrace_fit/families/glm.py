"""GLM 4: half of each head is turned, in neighbouring pairs. That of 2025 has norms after blocks, too."""

from dataclasses import replace

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.layout import GATE_UP
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp
from millrace_fit.declaration.rope import PARTIAL, read_rotary_dim
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields, *, is_normed_twice: bool = False) -> DecoderShape:
    """Return the shape."""
    attention = read_attention(
        fields.with_defaults({"head_dim": 128}),
        num_kv_heads=2,
        has_bias=fields.flag("attention_bias", default=True),
    )
    # null turns all, as in transformers.
    turned = read_rotary_dim(fields, attention.head_dim, default=1.0 if PARTIAL in fields else 0.5)
    attention = replace(attention, rotary_dim=turned, is_interleaved=True)
    layers = [LayerShape(attention, read_mlp(fields), is_normed_twice)] * fields.num_layers
    return read_decoder(fields, layers, max_length=131072, epsilon=1.5625e-7, may_be_partial=True)


def parse_glm4(fields: Fields) -> DecoderShape:
    """Return the shape of the models of 2025."""
    return parse(fields, is_normed_twice=True)


GLM = Family("GlmForCausalLM", "glm", parse, layout=(GATE_UP,))
GLM4 = Family("Glm4ForCausalLM", "glm4", parse_glm4, layout=(GATE_UP,))
