"""Phi 3 and 4: Llama with joined projections, of which some turn a part of each head (Abdin et al., 2024)."""

from dataclasses import replace
from typing import Final

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.layout import GATE_UP, QKV
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp, read_window
from millrace_fit.declaration.rope import read_rotary_dim
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention = read_attention(fields)
    attention = replace(
        attention,
        window=read_window(fields),
        rotary_dim=read_rotary_dim(fields, attention.head_dim, default=1.0),
    )
    layers = [LayerShape(attention, read_mlp(fields))] * fields.num_layers
    fields = fields.with_defaults({"original_max_position_embeddings": 4096})
    return read_decoder(fields, layers, max_length=4096, epsilon=1e-5, may_be_partial=True)


_OWN_CODE: Final = frozenset({"auto_map"})
"""Microsoft's repositories have it. It computes what transformers' class does."""
PHI3 = Family("Phi3ForCausalLM", "phi3", parse, layout=(QKV, GATE_UP), known=_OWN_CODE)
