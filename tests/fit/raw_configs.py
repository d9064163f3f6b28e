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


def attention_of(shape: DecoderShape) -> AttentionShape:
    (kind,) = shape.kinds
    return kind.attention
