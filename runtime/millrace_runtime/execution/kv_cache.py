"""The KV cache's tensors, and its size in the exceptions of execution."""

import torch
from torch import Tensor

from millrace_fit import kv_cache as fit
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SLACK
from millrace_runtime.execution.errors import CapacityError
from millrace_runtime.models.model import Architecture, KvShape


def block_bytes(model: Architecture, dtype: torch.dtype) -> int:
    """Return the memory of one block over all layers."""
    return sum(_numbers(shape) for shape in model.kv_shapes) * dtype.itemsize


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
    return fit.block_numbers(1, shape.num_kv_heads, shape.head_dim)
