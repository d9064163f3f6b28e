"""Decides, for the whole project, which implementation of each operation a device runs.

Triton kernels on CUDA, torch on CPUs. Triton is imported only where it is used.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from millrace_kernels.kv_write.reference import kv_write_reference
from millrace_kernels.paged_attention.tiled import TiledAttention
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_kernels.rotary.reference import rotary_reference
from millrace_kernels.silu_mul.reference import silu_mul_reference

Attend = Callable[[Tensor, Tensor, float], Tensor]
"""Takes query, a layer's kv_cache and scale. Returns the output. It is planned once for a step's layers."""


class Kernels(NamedTuple):
    """The operations of one kind of device that torch itself lacks or that Triton does better."""

    plan_attention: Callable[[Sequence[int], Sequence[int], Tensor, int, int], Attend]
    """Takes query_starts, context_lengths, block_tables, num_kv_heads and block_size. Returns an Attend."""
    kv_write: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]


def select_kernels(device: torch.device) -> Kernels:
    """Return the operations for a device."""
    return _select_triton() if device.type == "cuda" else _CPU


_CPU = Kernels(TiledAttention, kv_write_reference, rms_norm_reference, rotary_reference, silu_mul_reference)


def _select_triton() -> Kernels:
    from millrace_kernels.kv_write.triton_kernel import kv_write  # noqa: PLC0415  triton: only on GPUs
    from millrace_kernels.rms_norm.triton_kernel import rms_norm  # noqa: PLC0415
    from millrace_kernels.rotary.triton_kernel import rotary  # noqa: PLC0415
    from millrace_kernels.silu_mul.triton_kernel import silu_mul  # noqa: PLC0415

    return Kernels(_plan_triton_attention, kv_write, rms_norm, rotary, silu_mul)


def _plan_triton_attention(
    query_starts: Sequence[int],
    context_lengths: Sequence[int],
    block_tables: Tensor,
    num_kv_heads: int,  # noqa: ARG001  the kernel reads both from the cache's shape
    block_size: int,  # noqa: ARG001
) -> Attend:
    from millrace_kernels.paged_attention.triton_kernel import paged_attention  # noqa: PLC0415

    device = block_tables.device
    starts = torch.tensor(query_starts, dtype=torch.int32).to(device, non_blocking=True)
    contexts = torch.tensor(context_lengths, dtype=torch.int32).to(device, non_blocking=True)
    return partial(_attend_triton, paged_attention, starts, contexts, block_tables.to(torch.int32))


def _attend_triton(  # noqa: PLR0917
    kernel: Callable[..., Tensor],
    starts: Tensor,
    contexts: Tensor,
    block_tables: Tensor,
    query: Tensor,
    kv_cache: Tensor,
    scale: float,
) -> Tensor:
    return kernel(query, kv_cache, starts, contexts, block_tables, scale)
