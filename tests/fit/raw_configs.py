"""A small config.json, and what a shape that was read of one has."""

from typing import Any

from millrace_fit.shape import AttentionShape, DecoderShape

LLAMA = "LlamaForCausalLM"
RAW: dict[str, Any] = {
    "architectures": [LLAMA],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
FOUR_KV_HEADS = {"num_key_value_heads": 4}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
NEEDED: dict[str, dict[str, Any]] = {
    "GraniteMoeHybridForCausalLM": {"num_local_experts": 0, "layer_types": ["attention"] * 2},
    "MiniCPMForCausalLM": {"num_experts": 0},
}
"""What some families are not served without."""


def make_any(
    architecture: str, *changes: dict[str, Any], text: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a config.json that its family reads, whichever it is; with `text` its text has one, too."""
    raw = RAW | FOUR_KV_HEADS | EXPERTS | {"architectures": [architecture]} | NEEDED.get(architecture, {})
    for change in changes:
        raw |= change
    return raw if text is None else raw | {"text_config": RAW | FOUR_KV_HEADS | text}


def attention_of(shape: DecoderShape) -> AttentionShape:
    (kind,) = shape.kinds
    return kind.attention
