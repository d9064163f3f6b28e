"""Checkpoints with random weights, and what their files' headers say."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from millrace_fetch.cli.local_model import read_local_head
from millrace_fetch.plan.head import describe_head
from millrace_fit.facts import ModelFacts
from millrace_fit.files.headers import StoredTensor
from millrace_fit.shape import DecoderShape
from tests.runtime.execution.conftest import TINY, random_weights, weight_shapes

MEDIUM: dict[str, Any] = TINY | {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 680,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
"""Large enough that what is constant hides nothing."""
LLAMA_8B: dict[str, Any] = TINY | {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "dtype": "bfloat16",
}
LLAMA_70B: dict[str, Any] = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
QWEN_HALF: dict[str, Any] = TINY | {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write random weights in the type that the config names, and a tokenizer that only looks like one."""
    dtype = getattr(torch, config["dtype"])
    weights = {name: tensor.to(dtype) for name, tensor in random_weights(config).items()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    save_file(weights, folder / "model.safetensors")
    return folder


def stored_of(config: dict[str, Any], dtype: str = "BF16") -> dict[str, StoredTensor]:
    """What the headers of such a model say."""
    return {name: StoredTensor(dtype, shape) for name, shape in weight_shapes(config).items()}


def read_facts(folder: Path) -> ModelFacts:
    return describe_head(read_local_head(folder))


def shape_of(facts: ModelFacts) -> DecoderShape:
    """The shape of a model that is served."""
    assert facts.fault is None
    assert facts.shape is not None
    return facts.shape
