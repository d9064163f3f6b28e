"""The KV cache: its tensors, and the memory that the largest step leaves for it on a GPU."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from millrace_fit import kv_budget as fit
from millrace_fit.kv_budget import Budget, CacheGroup, bound_recordings, count_bytes, share_out
from millrace_fit.settings import FP8_CACHE, KV_CACHES, refuse_cache
from millrace_kernels.native.weights.packing import map_zeros
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SCALE_TYPE, SLACK, KvCache, KvFormat
from millrace_runtime.execution.errors import CapacityError, ModelError, is_out_of_memory
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.models.model import Architecture, KvShape
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Sleep
from millrace_runtime.protocol.sampling import build_costly_sampling
from millrace_runtime.protocol.step import Limits, Row, RowResult, SlotStart, StepPlan

FP8_CAPABILITY = (8, 9)
"""The compute capability from which GPUs convert float8_e4m3."""


def choose_kv_format(name: str, device: torch.device) -> KvFormat:
    """Return the cache's format. Raises ModelError for one without kernels on the device."""
    if name not in KV_CACHES:
        raise ModelError(f'a KV cache in "{name}" is not known: use {", ".join(map(repr, KV_CACHES))}')
    is_cuda = device.type == "cuda"
    fault = refuse_cache(name, "cuda" if is_cuda else "cpu")
    if name == FP8_CACHE and is_cuda and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        fault = f"{torch.cuda.get_device_name(device)} has no FP8"
    if fault is not None:
        raise ModelError(
            f"--kv-cache {name}: {fault}; write --kv-cache Int8 (spec.model.quantization.kvCache: Int8)"
        )
    return KvFormat(name)


def list_groups(
    model: Architecture, dtype: torch.dtype, form: KvFormat = KvFormat.MODEL
) -> tuple[CacheGroup, ...]:
    """Return the KV groups, with the bytes of a block over the layers of each."""
    num_bytes = [0] * len(model.groups)
    for shape in model.kv_shapes:
        num_bytes[shape.group] += fit.block_bytes(
            1, shape.num_kv_heads, shape.head_dim, dtype.itemsize, form.value
        )
    return tuple(map(CacheGroup, num_bytes, model.groups))


def allocate_cache(
    model: Architecture,
    num_blocks: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    form: KvFormat = KvFormat.MODEL,
) -> list[KvCache]:
    """Return each layer's zeros, of the blocks of its group.

    On a CPU a block takes memory once it is written. Raises CapacityError.
    """
    try:
        return [_allocate(shape, num_blocks[shape.group], dtype, device, form) for shape in model.kv_shapes]
    except (RuntimeError, OSError) as error:  # torch's for a GPU, and mmap's
        num_bytes = count_bytes(list_groups(model, dtype, form), num_blocks)
        raise CapacityError(
            f"a KV cache of {num_bytes} bytes can't be allocated: lower --kv-cache-memory"
        ) from error


def _allocate(
    shape: KvShape, num_blocks: int, dtype: torch.dtype, device: torch.device, form: KvFormat
) -> KvCache:
    """Return zeros, with SLACK numbers of the same memory after the last block."""
    tokens = (num_blocks, 2, shape.num_kv_heads, BLOCK_SIZE)
    count = math.prod(tokens) * shape.head_dim
    data = _zeros(count + SLACK, form.stored_type(dtype), device)[:count].view(*tokens, shape.head_dim)
    if form is KvFormat.MODEL:
        return KvCache(data)
    return KvCache(data, _zeros(math.prod(tokens), SCALE_TYPE, device).view(tokens), form)


def _zeros(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return map_zeros(count * dtype.itemsize).view(dtype)  # torch.zeros writes them, at 1.5 s a gigabyte
    return torch.zeros(count, dtype=dtype, device=device)


OpenExecutor = Callable[[Sequence[int], int], LocalExecutor]
"""Takes the blocks of each KV group, and the length of the longest sequence."""


def build_largest_plan(limits: Limits) -> StepPlan:
    """Return a step with the most drawing rows, and the most draws and tokens that these rows can have.

    All sequences have the same blocks, the first ones, because their results don't matter. Each token counts
    as generated, so that penalties count all tokens.
    """
    num_rows = min(limits.num_slots, limits.max_batched_tokens)
    longest = min(limits.max_batched_tokens // num_rows, limits.max_model_length - 1)
    guesses = _share_guesses(limits, num_rows, longest - 1)
    blocks = [list(range(-(-longest // limits.block_size)))] * len(limits.groups)
    costly = build_costly_sampling(limits.vocabulary_size)
    starts = [
        SlotStart(
            slot=slot,
            epoch=0,
            tokens=pack_tokens([0] * (longest - count)),
            num_computed=0,
            blocks=blocks,
            sampling=costly,
            num_prompt=0,
        )
        for slot, count in enumerate(guesses)
    ]
    rows = [Row(slot, longest - count, emit=True, draft=(0,) * count) for slot, count in enumerate(guesses)]
    return StepPlan(0, [], starts, [], rows)


def _share_guesses(limits: Limits, num_rows: int, most: int) -> list[int]:
    """Return the guesses of each row, at most `most`, so that the draws are as many as may be."""
    each, more = divmod(max(0, limits.max_draws - num_rows), num_rows)
    return [min(limits.max_draft, most, each + (number < more)) for number in range(num_rows)]


def budget_cache(
    device: torch.device, limits: Limits, open_executor: OpenExecutor, given: int | None = None
) -> Budget:
    """Return the KV cache's memory: `given`, or a share of what the largest steps leave.

    The driver says how much is free: a GPU may be a slice of a card, or other processes may use it too.
    Raises CapacityError without memory for the largest step, or for both.
    """
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run_largest(limits, open_executor)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(
            "the GPU has no memory for the largest step beside the weights: lower --max-batched-tokens or "
            "--max-sequences, or share the model among more GPUs with --tensor-parallel"
        ) from error
    step = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, recordings = torch.cuda.mem_get_info(device)[0], bound_recordings(len(limits.recordable))
    if given is None:
        return share_out(free, step, recordings)
    if given > (most := free - step - recordings):
        raise CapacityError(
            f"--kv-cache-memory {given} does not fit into the GPU's {free} free bytes beside {step} for the "
            f"largest step and {recordings} for recorded ones: lower it to {max(0, most)} or less, or lower "
            "--max-batched-tokens or --max-sequences"
        )
    return Budget(given, "--kv-cache-memory")


def run_largest(limits: Limits, open_executor: OpenExecutor) -> list[RowResult]:
    """Run as many largest steps as can be in flight, release everything, and return the last one's rows.

    Each step holds its logits until it is collected.
    """
    first = build_largest_plan(limits)
    slots = [start.slot for start in first.starts]
    executor = open_executor([len(blocks) for blocks in first.starts[0].blocks], limits.max_model_length)
    for number in range(executor.limits.depth):
        executor.submit(StepPlan(number, slots if number else [], first.starts, [], first.rows))
    for _ in range(executor.limits.depth):
        result = executor.collect()
    executor.submit(StepPlan(executor.limits.depth, slots, [], [], []))
    executor.collect()
    executor.control(Sleep())
    return result.rows
