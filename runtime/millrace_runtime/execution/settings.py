"""What an executor is built from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """The executor's settings, parsed once."""

    model_path: Path
    """Folder with config.json and safetensors."""
    device: str = "auto"
    """"cpu", "cuda", or "auto": CUDA where there is one."""
    dtype: str = "auto"
    """"float32", "bfloat16", or "auto": the checkpoint's own."""
    kernels: str = "auto"
    """What computes on a CPU: "torch", an instruction set's name, or "auto", the fastest there is."""
    weights: str = "FromCheckpoint"
    """"FromCheckpoint", or "Int8" or "Int4": matrices are rounded while they are loaded."""
    max_model_length: int | None = None
    """Tokens of prompt and output together. None: the model's own, or what the KV cache holds."""
    max_sequences: int = 64
    """Sequences on the device at once."""
    max_batched_tokens: int = 2048
    """Tokens computed in one step at most."""
    text_memory_bytes: int = 0
    """Memory of the host that is left for the text worker, and not planned for the KV cache."""
    kv_cache_bytes: int | None = None
    """The most memory for the KV cache, which is no larger than its sequences can fill. None: on GPUs nine
    tenths of what is free after the weights; on CPUs a share of what the cgroup or the machine has left."""
