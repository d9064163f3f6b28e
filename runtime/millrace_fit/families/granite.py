"""Granite 3 and 4: Llama with factors of the embedding, of the residual's summands, of scores and of logits.

Its mixtures, and Granite 4 without Mamba's layers, join projections in files under names of their own.
"""

from dataclasses import replace
from typing import Final

from millrace_fit.declaration.family import LLAMA_NAMES, Family
from millrace_fit.declaration.layout import Joined
from millrace_fit.declaration.parts import read_attention, read_decoder, read_experts, read_mlp
from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.shape import AttentionShape, DecoderShape, LayerShape, MlpShape

_SCALE: Final = "attention_multiplier"
FACTORS: Final = frozenset({"embedding_multiplier", "residual_multiplier", _SCALE, "logits_scaling"})


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    mlp = read_mlp(fields, has_bias=fields.flag("mlp_bias"))
    layers = [LayerShape(_read_attention(fields), mlp)] * fields.num_layers
    return read_factors(fields, read_decoder(fields, layers, max_length=2048))


def parse_moe(fields: Fields) -> DecoderShape:
    """Return the shape of a mixture: the softmax is of the chosen experts' scores alone."""
    attention = _read_attention(fields)
    experts = read_experts(fields, 8, 2, fields.count("intermediate_size"), is_normalised=True)
    layers = [LayerShape(attention, experts)] * fields.num_layers
    return read_factors(fields, read_decoder(fields, layers, max_length=2048))


def parse_hybrid(fields: Fields) -> DecoderShape:
    """Return the shape of a model whose layers all have attention. Raises ArchitectureError for others."""
    advice = "only models without experts are supported"
    fields.refuse("num_local_experts", unless=(0,), advice=advice)
    kinds = [
        fields.items(name, fields.num_layers, "attention", "full_attention")
        for name in ("layer_types", "layers_block_type")
    ]
    if not any(kinds):
        raise ArchitectureError(
            "config.json has no layer_types, so all layers are Mamba's: none is supported"
        )
    advice = '"rope" and null are supported'
    fields.refuse("position_embedding_type", unless=("rope", "nope", None), advice=advice)
    has_rotary = fields.raw.get("position_embedding_type") == "rope"
    attention = replace(_read_attention(fields), has_rotary=has_rotary)
    mlp = MlpShape(fields.count("shared_intermediate_size", 1024))
    layers = [LayerShape(attention, mlp)] * fields.num_layers
    return read_factors(fields, read_decoder(fields, layers, max_length=2048))


def _read_attention(fields: Fields) -> AttentionShape:
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, has_bias=bias, has_output_bias=bias)
    if fields.raw.get(_SCALE, 1.0) is None:  # as in transformers: one over the root of the head's size
        return attention
    return replace(attention, scale=fields.number(_SCALE, 1.0))


def read_factors(fields: Fields, shape: DecoderShape) -> DecoderShape:
    """Return the shape with the factors of Granite's configs. Raises ArchitectureError."""
    return replace(
        shape,
        embedding_factor=fields.number("embedding_multiplier", 1.0),
        output_factor=fields.number("residual_multiplier", 1.0),
        logit_factor=1.0 / fields.number("logits_scaling", 1.0),
    )


_LAYER: Final = "model.layers.{layer}."
_MIXTURE: Final = f"{_LAYER}block_sparse_moe."
_MLP: Final = f"{_LAYER}shared_mlp."
GRANITE = Family("GraniteForCausalLM", "granite", parse, known=FACTORS)
GRANITE_MOE = Family(
    "GraniteMoeForCausalLM",
    "granitemoe",
    parse_moe,
    names={
        **LLAMA_NAMES,
        "router": f"{_MIXTURE}router.layer",
        "expert_gate": f"{_MIXTURE}experts.{{expert}}.gate_proj",
        "expert_up": f"{_MIXTURE}experts.{{expert}}.up_proj",
        "expert_down": f"{_MIXTURE}experts.{{expert}}.down_proj",
    },
    layout=(
        Joined(f"{_MIXTURE}input_linear", ("expert_gate", "expert_up"), has_experts=True),
        Joined(f"{_MIXTURE}output_linear", ("expert_down",), has_experts=True),
    ),
    known=FACTORS,
)
GRANITE_HYBRID = Family(
    "GraniteMoeHybridForCausalLM",
    "granitemoehybrid",
    parse_hybrid,
    names={
        **LLAMA_NAMES,
        "gate": f"{_MLP}gate_proj",
        "up": f"{_MLP}up_proj",
        "down": f"{_MLP}output_linear",
    },
    layout=(Joined(f"{_MLP}input_linear", ("gate", "up")),),
    known=FACTORS,
)
