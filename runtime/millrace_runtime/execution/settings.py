"""The settings of an executor."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """The executor's settings, parsed once."""

    model_path: Path
    """Folder with config.json and safetensors."""
    device: str = "auto"
    """"cpu", "cuda", or "auto": CUDA if there is a GPU."""
    dtype: str = "auto"
    """"float32", "bfloat16", or "auto": the checkpoint's own."""
    kernels: str = "auto"
    """The kernels on a CPU: "torch", an instruction set's name, or "auto", the fastest that runs."""
    weights: str = "FromCheckpoint"
    """"FromCheckpoint", or "Int8" or "Int4": loading rounds the matrices."""
    kv_cache: str = "Model"
    """"Model", or "Int8" or "Fp8": keys and values are rounded as they are written."""
    max_model_length: int | None = None
    """Tokens of prompt and output together. None: the model's own limit, or the KV cache's."""
    max_sequences: int = 64
    """Sequences on the device at once."""
    max_batched_tokens: int = 2048
    """The most tokens of one step."""
    speculative_tokens: int = 0
    """The most draft tokens of a sequence in one step; 0: no drafts."""
    text_memory_bytes: int = 0
    """The bytes of host memory that the KV cache leaves free for the text worker."""
    kv_cache_bytes: int | None = None
    """The most memory for the KV cache, which is no larger than its sequences can fill. None: on GPUs a share
    of the free memory after the weights; on CPUs a share of the free memory in the cgroup or the machine."""
