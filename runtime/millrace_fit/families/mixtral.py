"""Mixtral: Mistral with a mixture of experts in each layer (Jiang et al., 2024)."""

from dataclasses import replace

from millrace_fit.declaration.family import LLAMA_NAMES, Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_experts, read_window
from millrace_fit.families.mistral import MAX_LENGTH
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention = replace(read_attention(fields, num_kv_heads=8), window=read_window(fields))
    width = fields.count("intermediate_size")
    experts = read_experts(fields, 8, 2, width, is_normalised=True)
    layers = [LayerShape(attention, experts)] * fields.num_layers
    return read_decoder(fields, layers, theta=1e6, max_length=MAX_LENGTH, epsilon=1e-5)


_PREFIX = "model.layers.{layer}.block_sparse_moe"
NAMES = {
    **LLAMA_NAMES,
    "router": f"{_PREFIX}.gate",
    "expert_gate": f"{_PREFIX}.experts.{{expert}}.w1",
    "expert_up": f"{_PREFIX}.experts.{{expert}}.w3",
    "expert_down": f"{_PREFIX}.experts.{{expert}}.w2",
}
MIXTRAL = Family("MixtralForCausalLM", "mixtral", parse, names=NAMES)
