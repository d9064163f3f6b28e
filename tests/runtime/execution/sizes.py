"""The sizes of the smallest models, as config.json names them."""

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_act": "silu",
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
