"""MiniCPM 1 to 4: Llama with Granite's factors under other names (Hu et al., 2024)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp
from millrace_fit.fields import MAX_COUNT, Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape, up to the length after which attention is sparse. Raises ArchitectureError."""
    fields.refuse("num_experts", unless=(0, None), advice="only models without experts are supported")
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, has_bias=bias, has_output_bias=bias)
    layers = [LayerShape(attention, read_mlp(fields))] * fields.num_layers
    shape = read_decoder(fields, layers, max_length=2048, is_tied=True)
    return replace(
        shape,
        max_length=min(shape.max_length, _find_dense_length(fields)),
        embedding_factor=fields.number("scale_emb", 1.0),
        output_factor=fields.number("scale_depth", 1.0) / math.sqrt(fields.num_layers),
        logit_factor=fields.number("dim_model_base", 1.0) / fields.count("hidden_size"),
    )


def _find_dense_length(fields: Fields) -> int:
    """Return the length up to which all tokens are attended to, in a model that may choose them."""
    sparse = fields.raw.get("sparse_config")
    return Fields(sparse).count("dense_len", 8192) if isinstance(sparse, Mapping) else MAX_COUNT


_KNOWN: Final = frozenset({"auto_map", "scale_emb", "scale_depth", "dim_model_base"})
MINICPM = Family("MiniCPMForCausalLM", "minicpm", parse, known=_KNOWN)
