"""From settings to an executor: loads the model, sizes its KV cache, and chooses the path that computes."""

import torch

from millrace_kernels.tensor_step import TensorPacker
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.execution.kv_cache import (
    BLOCK_SIZE,
    CacheShape,
    allocate_cache,
    default_cache_bytes,
    plan_cache,
)
from millrace_runtime.execution.loading import (
    CheckpointWeights,
    Reader,
    choose_device,
    choose_dtype,
    choose_format,
    find_model,
    read_config,
)
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.model_runner import TensorRunner
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Architecture
from millrace_runtime.protocol.step import Limits


def build_executor(settings: ExecutionSettings) -> LocalExecutor:
    """Load the model and allocate its KV cache. Raises ModelError, whose text says what to do."""
    if settings.max_sequences < 1 or settings.max_batched_tokens < 1:
        raise ModelError("--max-sequences and --max-batched-tokens must be at least 1")
    raw = read_config(settings.model_path)
    architecture = find_model(settings.model_path, raw)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, raw, device)
    form = choose_format(settings.weights, device)
    with torch.inference_mode():
        weights = CheckpointWeights(Reader(settings.model_path), TensorPacker(dtype, device, form))
        longest = min(architecture.max_length, settings.max_model_length or architecture.max_length)
        model = architecture.build(weights, longest)
        shape = _plan_cache(architecture, settings, dtype, device)
        caches = allocate_cache(architecture, shape.num_blocks, dtype, device)
        slots = SlotTable(settings.max_sequences, shape.max_model_length, shape.num_blocks, device)
    limits = Limits(
        num_blocks=shape.num_blocks,
        block_size=BLOCK_SIZE,
        num_slots=settings.max_sequences,
        depth=1 if device.type == "cpu" else 2,
        max_model_length=shape.max_model_length,
        vocabulary_size=architecture.vocabulary_size,
    )
    return LocalExecutor(TensorRunner(model, caches, device), slots, limits, device)


def _plan_cache(
    architecture: Architecture, settings: ExecutionSettings, dtype: torch.dtype, device: torch.device
) -> CacheShape:
    length, cache_bytes = settings.max_model_length, settings.kv_cache_bytes
    if cache_bytes is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        needed = length or architecture.max_length
        cache_bytes = default_cache_bytes(architecture, dtype, settings.max_sequences, needed, free)
    return plan_cache(architecture, dtype, length, cache_bytes)
