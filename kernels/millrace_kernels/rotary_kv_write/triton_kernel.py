"""Rotary position embedding and KV write for GPUs: one program a token and some of its heads."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.step import Heads

HEADS_AT_ONCE = 8


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _rotary_kv_write_kernel(  # noqa: PLR0917
    qkv_ptr: tl.tensor,
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    table_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    qkv_stride: tl.tensor,
    sines: tl.tensor,
    kv_stride_block: tl.tensor,
    kv_stride_part: tl.tensor,
    kv_stride_head: tl.tensor,
    kv_stride_offset: tl.tensor,
    HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    BLOCK_HEADS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, BLOCK)
    is_dim = dims < HALF
    wanted = (heads < HEADS + 2 * KV_HEADS)[:, None] & is_dim[None, :]
    line = qkv_ptr + token * qkv_stride + heads[:, None] * (2 * HALF) + dims[None, :]
    first = tl.load(line, mask=wanted, other=0.0).to(tl.float32)
    second = tl.load(line + HALF, mask=wanted, other=0.0).to(tl.float32)
    angle = table_ptr + tl.load(positions_ptr + token) * HALF + dims
    cos = tl.load(angle, mask=is_dim, other=0.0)[None, :]
    sin = tl.load(angle + sines, mask=is_dim, other=0.0)[None, :]
    is_turned = (heads < HEADS + KV_HEADS)[:, None]
    one = tl.where(is_turned, first * cos - second * sin, first)
    other = tl.where(is_turned, second * cos + first * sin, second)

    is_query = (heads < HEADS)[:, None] & is_dim[None, :]
    query = query_ptr + (token * HEADS + heads[:, None]) * (2 * HALF) + dims[None, :]
    tl.store(query, one.to(query_ptr.dtype.element_ty), mask=is_query)
    tl.store(query + HALF, other.to(query_ptr.dtype.element_ty), mask=is_query)

    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        stored = heads - HEADS  # keys, then values
        is_stored = wanted & (stored >= 0)[:, None]
        place = (slot // BLOCK_SIZE) * kv_stride_block + (slot % BLOCK_SIZE) * kv_stride_offset
        part = (stored // KV_HEADS) * kv_stride_part + (stored % KV_HEADS) * kv_stride_head
        where = kv_ptr + place + part[:, None] + dims[None, :]
        tl.store(where, one.to(kv_ptr.dtype.element_ty), mask=is_stored)
        tl.store(where + HALF, other.to(kv_ptr.dtype.element_ty), mask=is_stored)


def rotary_kv_write(  # noqa: PLR0917
    qkv: Tensor, heads: Heads, positions: Tensor, table: Tensor, kv_cache: Tensor, cache_slots: Tensor
) -> Tensor:
    """Launch the kernel; shapes as in `rotary_kv_write_reference`, a cache slot for every token.

    Rows of qkv, the table and the cache's last dimension must be contiguous.
    """
    num_tokens, num_all = qkv.shape[0], heads.num_heads + 2 * heads.num_kv_heads
    query = torch.empty((num_tokens, heads.num_heads * heads.head_dim), dtype=qkv.dtype, device=qkv.device)
    _rotary_kv_write_kernel[(num_tokens, triton.cdiv(num_all, HEADS_AT_ONCE))](
        qkv, query, kv_cache, positions, table, cache_slots, qkv.stride(0), table.stride(0),
        *kv_cache.stride()[:4], HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads, HALF=heads.head_dim // 2,
        BLOCK_SIZE=kv_cache.shape[3], BLOCK_HEADS=HEADS_AT_ONCE,
        BLOCK=triton.next_power_of_2(heads.head_dim // 2), enable_fp_fusion=False,
    )  # fmt: skip
    return query
