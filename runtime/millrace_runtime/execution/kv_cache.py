"""The KV cache: its size and its tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SLACK
from millrace_runtime.execution.errors import CapacityError
from millrace_runtime.execution.memory import Budget
from millrace_runtime.models.model import Architecture, KvShape


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The cache's size, in blocks, and the longest sequence it is to hold."""

    num_blocks: int
    max_model_length: int
    num_bytes: int
    source: str
    """What bounds its memory, in words for the log."""

    def describe(self) -> str:
        """Return a line for the log."""
        return (
            f"a KV cache of {self.num_blocks} blocks, {self.num_bytes} bytes, within {self.source}; "
            f"sequences of up to {self.max_model_length} tokens"
        )


def block_bytes(model: Architecture, dtype: torch.dtype) -> int:
    """Return the memory of one block over all layers."""
    return sum(_numbers(shape) for shape in model.kv_shapes) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What the cache is to hold."""

    block_bytes: int
    """Of one block over all layers."""
    max_sequences: int
    longest: int
    """Tokens of the longest sequence."""
    is_firm: bool
    """Whether a sequence of that length must fit. If not, sequences are as long as the memory allows."""


def plan_cache(demand: CacheDemand, budget: Budget) -> CacheShape:
    """Return a cache that fits into the budget, and is no larger than all sequences together can fill.

    There is no prefix cache, so a block that no sequence holds is of no use. Raises CapacityError.
    """
    num_blocks = budget.num_bytes // demand.block_bytes
    room, needed = num_blocks * BLOCK_SIZE, demand.longest if demand.is_firm else BLOCK_SIZE
    if room < needed:
        raise CapacityError(
            f"a KV cache of {budget.num_bytes} bytes ({budget.source}) holds {room} tokens, fewer than one "
            f"sequence of {needed}: lower --max-model-length or give the cache more memory"
        )
    length = min(demand.longest, room)
    num_blocks = min(num_blocks, demand.max_sequences * _blocks_of(length))
    return CacheShape(num_blocks, length, num_blocks * demand.block_bytes, budget.source)


def allocate_cache(
    model: Architecture, num_blocks: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Return each layer's zeros [blocks, 2, kv_heads, block_size, head_dim]. Raises CapacityError."""
    try:
        return [_allocate(shape, num_blocks, dtype, device) for shape in model.kv_shapes]
    except RuntimeError as error:  # torch has no class of its own for a CPU without memory
        num_bytes = num_blocks * block_bytes(model, dtype)
        raise CapacityError(
            f"a KV cache of {num_bytes} bytes can't be allocated: lower --kv-cache-memory"
        ) from error


def _allocate(shape: KvShape, num_blocks: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros, with SLACK numbers of the same memory after the last block."""
    flat = torch.zeros(num_blocks * _numbers(shape) + SLACK, dtype=dtype, device=device)
    return flat[:-SLACK].view(num_blocks, 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)


def _numbers(shape: KvShape) -> int:
    """Return how many numbers one block of one layer has."""
    return 2 * shape.num_kv_heads * shape.head_dim * BLOCK_SIZE


def _blocks_of(length: int) -> int:
    return -(-length // BLOCK_SIZE)
