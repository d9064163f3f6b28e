"""How large the KV cache is, and its tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SLACK
from millrace_runtime.execution.errors import CapacityError
from millrace_runtime.models.model import Architecture, KvShape

GPU_SHARE_OF_FREE = 0.9
"""The rest is for activations and for what else lives on the device."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The cache's size, in blocks, and the longest sequence it is to hold."""

    num_blocks: int
    max_model_length: int


def block_bytes(model: Architecture, dtype: torch.dtype) -> int:
    """Memory of one block over all layers."""
    return sum(_numbers(shape) for shape in model.kv_shapes) * dtype.itemsize


def default_cache_bytes(
    model: Architecture, dtype: torch.dtype, max_sequences: int, length: int, free: int, *, is_gpu: bool
) -> int:
    """Memory to take when nobody said; `free` is what the device has left for us, in bytes."""
    if is_gpu:
        return int(free * GPU_SHARE_OF_FREE)
    return min(max_sequences * _blocks_of(length) * block_bytes(model, dtype), free)


def plan_cache(model: Architecture, dtype: torch.dtype, length: int | None, cache_bytes: int) -> CacheShape:
    """Fit the cache into the memory. Raises CapacityError if a sequence of `length` has no room.

    Without a length it is the model's own, or what fits.
    """
    if length is not None and length > model.max_length:
        raise CapacityError(
            f"--max-model-length {length} is more than the model's own {model.max_length}: lower it"
        )
    num_blocks = cache_bytes // block_bytes(model, dtype)
    room = num_blocks * BLOCK_SIZE
    if room < (length or BLOCK_SIZE):
        raise CapacityError(
            f"a KV cache of {cache_bytes} bytes holds {room} tokens, fewer than one sequence of "
            f"{length or BLOCK_SIZE}: lower --max-model-length or give the cache more memory"
        )
    return CacheShape(num_blocks, length or min(model.max_length, room))


def allocate_cache(
    model: Architecture, num_blocks: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Return each layer's [blocks, 2, kv_heads, block_size, head_dim], zeros."""
    return [_allocate(shape, num_blocks, dtype, device) for shape in model.kv_shapes]


def _allocate(shape: KvShape, num_blocks: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros, with SLACK numbers of the same memory after the last block."""
    flat = torch.zeros(num_blocks * _numbers(shape) + SLACK, dtype=dtype, device=device)
    return flat[:-SLACK].view(num_blocks, 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)


def _numbers(shape: KvShape) -> int:
    """Numbers in one block of one layer."""
    return 2 * shape.num_kv_heads * shape.head_dim * BLOCK_SIZE


def _blocks_of(length: int) -> int:
    return -(-length // BLOCK_SIZE)
