"""gpt-oss: experts with biases and a clamped gate, windows in every second layer, sinks of attention (2025).

Its files have all experts in one tensor, gate and factor in turn: plain ones with inputs before outputs, and
float blocks with outputs first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from millrace_fit.declaration.family import LLAMA_NAMES, Family
from millrace_fit.declaration.layout import Ending, Joined
from millrace_fit.declaration.parts import (
    read_attention,
    read_decoder,
    read_experts,
    read_named_windows,
    read_window,
)
from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, ExpertsShape, LayerShape

_ROPE: Final[Mapping[str, Any]] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ALPHA: Final = 1.702
_CHOSEN, _ALSO_CHOSEN = "num_experts_per_tok", "experts_per_token"


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    bias = fields.flag("attention_bias", default=True)
    head_dim = None if "head_dim" in fields else 64
    attention = read_attention(fields, num_kv_heads=8, head_dim=head_dim, has_bias=bias, has_output_bias=bias)
    attention, experts = replace(attention, has_sinks=True), _read_experts(fields)
    layers = [LayerShape(replace(attention, window=window), experts) for window in _read_windows(fields)]
    if not fields.has("rope_parameters"):
        fields = Fields({**fields.raw, "rope_parameters": _ROPE})
    return read_decoder(fields, layers, theta=150000.0, max_length=131072, epsilon=1e-5)


def _read_experts(fields: Fields) -> ExpertsShape:
    """Return the experts. Raises ArchitectureError."""
    fields.refuse("swiglu_alpha", unless=(_ALPHA, None), advice=f"only {_ALPHA} is supported")
    if fields.has(_CHOSEN):
        fields.refuse(
            _ALSO_CHOSEN,
            unless=(fields.raw[_CHOSEN], None),
            advice=f"it must equal {_CHOSEN}",
        )
    num_chosen = fields.count(_ALSO_CHOSEN, 4)
    width = fields.count("intermediate_size")
    experts = read_experts(fields, 128, num_chosen, width, is_normalised=True)
    return replace(experts, has_bias=True, gate_limit=fields.number("swiglu_limit", 7.0))


def _read_windows(fields: Fields) -> Sequence[int | None]:
    """Return each layer's window: without `layer_types` every second has it, the first one too."""
    window = read_window(fields, default=128)
    if (named := read_named_windows(fields, window)) is not None:
        return named
    if window is None:
        raise ArchitectureError(
            "config.json has sliding_window None, and without layer_types every second layer has one: set it"
        )
    return [None if number % 2 else window for number in range(fields.num_layers)]


_LAYER: Final = "model.layers.{layer}."
_EXPERTS: Final = f"{_LAYER}mlp.experts."
_ENDINGS: Final = (
    Ending("", "weight", is_turned=True),
    Ending("_bias", "bias"),
    Ending("_blocks", "weight_blocks"),
    Ending("_scales", "weight_scales"),
)
GPT_OSS = Family(
    "GptOssForCausalLM",
    "gpt_oss",
    parse,
    names={**LLAMA_NAMES, "router": f"{_LAYER}mlp.router", "sinks": f"{_LAYER}self_attn.sinks"},
    layout=(
        Joined(f"{_LAYER}self_attn.sinks", ("sinks",)),
        Joined(
            f"{_EXPERTS}gate_up_proj",
            ("expert_gate", "expert_up"),
            has_experts=True,
            is_interleaved=True,
            endings=_ENDINGS,
        ),
        Joined(f"{_EXPERTS}down_proj", ("expert_down",), has_experts=True, endings=_ENDINGS),
    ),
)
