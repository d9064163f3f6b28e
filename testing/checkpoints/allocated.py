"""What the runtime's loader allocates for a model, beside what was predicted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millrace_fit.kv_budget import Budget
from millrace_fit.settings import MODEL_TYPE, Settings
from millrace_runtime.execution.build import LoadedModel, load_model
from millrace_runtime.execution.collective import ALONE_RANK
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.loading import LoadPlan
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.settings import ExecutionSettings
from testing.checkpoints.models import read_facts

LENGTH = 512
NUM_BLOCKS = 64
"""Of the KV cache that is allocated."""

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "biases and odd sizes": {
        "attention_bias": True,
        "mlp_bias": True,
        "vocab_size": 1003,
        "intermediate_size": 700,
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen 2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen 3": {"architectures": ["Qwen3ForCausalLM"]},
    "windows": {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 96,
        "max_window_layers": 1,
    },
    "mixture": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 200,
        "mlp_only_layers": [1],
    },
    "shared expert": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 352,
        "dtype": "bfloat16",
    },
    "wide": {"intermediate_size": 1536, "num_key_value_heads": 1, "dtype": "bfloat16"},
    "experts in each layer": {
        "architectures": ["GraniteMoeForCausalLM"],
        "num_local_experts": 6,
        "num_experts_per_tok": 4,
        "intermediate_size": 200,
        "dtype": "bfloat16",
    },
    "sinks and biased experts": {
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "intermediate_size": 200,
        "sliding_window": 96,
        "dtype": "bfloat16",
    },
    "norms after": {"architectures": ["Glm4ForCausalLM"], "dtype": "bfloat16"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
}
"""What differs from MEDIUM."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model."""

    weights: int
    kv_cache: int
    """Of NUM_BLOCKS blocks."""


def load(folder: Path, **settings: Any) -> LoadedModel:
    """Load a model on the CPU."""
    sizes: dict[str, Any] = {"max_sequences": 4, "max_batched_tokens": 64, "max_model_length": LENGTH}
    asked = {"device": "cpu", **sizes, **settings}
    host = Budget(1 << 30, "a test")
    return load_model(ExecutionSettings(folder, **asked), host, ALONE_RANK, lambda _: None)


@contextmanager
def keeping_models() -> Iterator[list[Any]]:
    """Keep every model that is built meanwhile: a runner keeps of its own only what its path reads."""
    models: list[Any] = []
    load_one = LoadPlan._load

    def keep(plan: LoadPlan, packer: Any, longest: int) -> Any:
        models.append(load_one(plan, packer, longest))
        return models[-1]

    LoadPlan._load = keep  # type: ignore[assignment, method-assign]
    try:
        yield models
    finally:
        LoadPlan._load = load_one  # type: ignore[method-assign]


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every tensor below a model's object."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_of(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif type(value).__module__.startswith("millrace_runtime"):
        for one in vars(value).values():
            yield from tensors_of(one)


def count_bytes(model: Any) -> int:
    """The bytes of a model's tensors, each once, without the angles: they are tables."""
    found = {tensor.data_ptr(): tensor for tensor in tensors_of(model)}
    return sum(tensor.nbytes for tensor in found.values() if tensor.shape[:2] != (2, LENGTH))


def predict_sizes(folder: Path, weights: str, kv_cache: str = MODEL_TYPE) -> Sizes:
    """Return the predicted sizes, by config.json and the headers."""
    facts = read_facts(folder)
    told = facts.weigh(Settings("cpu", weights, kv_cache))
    return Sizes(told.most_bytes, NUM_BLOCKS * sum(group.block_bytes for group in told.groups))


def allocate_sizes(folder: Path, weights: str, kv_cache: str = MODEL_TYPE) -> Sizes:
    """What the loader and the KV cache really take."""
    with keeping_models() as models:
        loaded = load(folder, weights=weights, kv_cache=kv_cache)
    assert isinstance(loaded.runner, NativeRunner), "rounded weights take more where torch computes"
    plan = loaded.plan
    counts, cpu = [NUM_BLOCKS] * len(plan.architecture.groups), torch.device("cpu")
    caches = allocate_cache(plan.architecture, counts, plan.dtype, cpu, plan.kv_format)
    tensors = [one for cache in caches for one in (cache.data, cache.scales) if one is not None]
    return Sizes(count_bytes(models[0]), sum(one.untyped_storage().nbytes() for one in tensors))
