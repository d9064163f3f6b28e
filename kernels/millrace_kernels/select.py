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


class QueryRows(NamedTuple):
    """A step's rows, as attention is planned over them: on the host, and int64 on the device."""

    starts: Sequence[int]
    """[rows + 1]: each row's first token in the step."""
    contexts: Sequence[int]
    """[rows]: the length of each row's sequence after the step."""
    device_starts: Tensor
    device_contexts: Tensor


class Kernels(NamedTuple):
    """The operations of one kind of device that torch itself lacks or that Triton does better."""

    plan_attention: Callable[[QueryRows, Tensor, int, int], Attend]
    """Takes the rows, their block tables [rows, any], num_kv_heads and block_size. Returns an Attend."""
    kv_write: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]


def select_kernels(device: torch.device) -> Kernels:
    """Return the operations for a device."""
    return _select_triton() if device.type == "cuda" else _CPU


def _plan_tiled_attention(
    rows: QueryRows, block_tables: Tensor, num_kv_heads: int, block_size: int
) -> Attend:
    return TiledAttention(rows.starts, rows.contexts, block_tables, num_kv_heads, block_size)


_CPU = Kernels(
    _plan_tiled_attention, kv_write_reference, rms_norm_reference, rotary_reference, silu_mul_reference
)


def _select_triton() -> Kernels:
    from millrace_kernels.kv_write.triton_kernel import kv_write  # noqa: PLC0415  triton: only on GPUs
    from millrace_kernels.rms_norm.triton_kernel import rms_norm  # noqa: PLC0415
    from millrace_kernels.rotary.triton_kernel import rotary  # noqa: PLC0415
    from millrace_kernels.silu_mul.triton_kernel import silu_mul  # noqa: PLC0415

    return Kernels(_plan_triton_attention, kv_write, rms_norm, rotary, silu_mul)


def _plan_triton_attention(
    rows: QueryRows,
    block_tables: Tensor,
    num_kv_heads: int,  # noqa: ARG001  the kernel reads both from the cache's shape
    block_size: int,  # noqa: ARG001
) -> Attend:
    from millrace_kernels.paged_attention.triton_kernel import paged_attention  # noqa: PLC0415

    starts, contexts = rows.device_starts.to(torch.int32), rows.device_contexts.to(torch.int32)
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
