"""Norms of heads, rotation and KV write for GPUs: one program a token and some of its heads."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.step import HeadNorms, Heads

HEADS_AT_ONCE = 8


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _rotary_kv_write_kernel(  # noqa: PLR0917
    qkv_ptr: tl.tensor,
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    table_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    query_norm_ptr: tl.tensor,
    key_norm_ptr: tl.tensor,
    epsilon: tl.tensor,
    qkv_stride: tl.tensor,
    sines: tl.tensor,
    kv_stride_block: tl.tensor,
    kv_stride_part: tl.tensor,
    kv_stride_head: tl.tensor,
    kv_stride_offset: tl.tensor,
    HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    HAS_NORMS: tl.constexpr,  # noqa: N803
    HAS_ANGLES: tl.constexpr,  # noqa: N803
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
    one, other = first, second
    is_turned = (heads < HEADS + KV_HEADS)[:, None]
    if HAS_NORMS:
        dtype = qkv_ptr.dtype.element_ty
        squares = tl.sum(first * first + second * second, 1)
        inverse = (1.0 / tl.sqrt(squares / (2 * HALF) + epsilon))[:, None]
        # A head's line of the weights. Those of values are not used, but are read.
        scale = tl.where((heads < HEADS)[:, None], query_norm_ptr, key_norm_ptr) + dims[None, :]
        scales = tl.load(scale, mask=wanted, other=0.0).to(tl.float32)
        other_scales = tl.load(scale + HALF, mask=wanted, other=0.0).to(tl.float32)
        # Rounded like the reference: the quotient, and its product with the weight.
        normed = (first * inverse).to(dtype).to(tl.float32) * scales
        other_normed = (second * inverse).to(dtype).to(tl.float32) * other_scales
        one = tl.where(is_turned, normed.to(dtype).to(tl.float32), first)
        other = tl.where(is_turned, other_normed.to(dtype).to(tl.float32), second)
    if HAS_ANGLES:
        angle = table_ptr + tl.load(positions_ptr + token) * HALF + dims
        cos = tl.load(angle, mask=is_dim, other=0.0)[None, :]
        sin = tl.load(angle + sines, mask=is_dim, other=0.0)[None, :]
        turned = one * cos - other * sin
        other = tl.where(is_turned, other * cos + one * sin, other)
        one = tl.where(is_turned, turned, one)

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
    qkv: Tensor,
    heads: Heads,
    positions: Tensor,
    table: Tensor | None,
    kv_cache: KvCache,
    cache_slots: Tensor,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Launch the kernel; shapes as in `rotary_kv_write_reference`, a cache slot for every token.

    Rows of qkv, the table, the norms' weights and the cache's last dimension must be contiguous.
    """
    num_tokens, num_all = qkv.shape[0], heads.num_heads + 2 * heads.num_kv_heads
    query = torch.empty((num_tokens, heads.num_heads * heads.head_dim), dtype=qkv.dtype, device=qkv.device)
    scales = (qkv, qkv, 0.0) if norms is None else norms  # any memory: the kernel reads none of it
    sines = 0 if table is None else table.stride(0)
    data = kv_cache.data
    _rotary_kv_write_kernel[(num_tokens, triton.cdiv(num_all, HEADS_AT_ONCE))](
        qkv, query, data, positions, qkv if table is None else table, cache_slots, *scales, qkv.stride(0),
        sines, *data.stride()[:4], HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads,
        HALF=heads.head_dim // 2, HAS_NORMS=norms is not None, HAS_ANGLES=table is not None,
        BLOCK_SIZE=kv_cache.block_size, BLOCK_HEADS=HEADS_AT_ONCE,
        BLOCK=triton.next_power_of_2(heads.head_dim // 2), enable_fp_fusion=False,
    )  # fmt: skip
    return query
