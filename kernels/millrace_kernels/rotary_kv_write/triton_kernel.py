"""Norms of heads, rotation and KV write for GPUs: one program a token and some of its heads."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.paged_attention.cache import LARGEST, SMALLEST, KvCache
from millrace_kernels.paged_attention.triton_kernel import launch_cache
from millrace_kernels.step import HeadNorms, Heads

HEADS_AT_ONCE = 8


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _rotary_kv_write_kernel(  # noqa: PLR0915, PLR0917
    qkv_ptr: tl.tensor,
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    scales_ptr: tl.tensor,
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
    scales_stride_block: tl.tensor,
    scales_stride_part: tl.tensor,
    scales_stride_head: tl.tensor,
    HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    HAS_NORMS: tl.constexpr,  # noqa: N803
    HAS_ANGLES: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    BLOCK_HEADS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    LARGEST: tl.constexpr,  # noqa: N803  what a head's largest number is rounded to; 0: none is rounded
    SMALLEST: tl.constexpr,  # noqa: N803
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
        if LARGEST:
            # In the model's type first.
            model = query_ptr.dtype.element_ty
            one, other = one.to(model).to(tl.float32), other.to(model).to(tl.float32)
            head_scales, one, other = _round_heads(one, other, LARGEST, SMALLEST)
            if kv_ptr.dtype.element_ty == tl.int8:
                one, other = _to_multiple(one, 1.0), _to_multiple(other, 1.0)
            else:
                one, other = _to_float8(one), _to_float8(other)
            scale_place = (slot // BLOCK_SIZE) * scales_stride_block + slot % BLOCK_SIZE
            scale_part = (stored // KV_HEADS) * scales_stride_part + (stored % KV_HEADS) * scales_stride_head
            is_scale = (stored >= 0) & (stored < 2 * KV_HEADS)
            tl.store(scales_ptr + scale_place + scale_part, head_scales.to(tl.bfloat16), mask=is_scale)
        tl.store(where, one.to(kv_ptr.dtype.element_ty), mask=is_stored)
        tl.store(where + HALF, other.to(kv_ptr.dtype.element_ty), mask=is_stored)


@triton.jit  # type: ignore[untyped-decorator]
def _round_heads(
    one: tl.tensor,
    other: tl.tensor,
    LARGEST: tl.constexpr,  # noqa: N803
    SMALLEST: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the scale of each head in float32, and both its halves divided by it."""
    most = tl.maximum(tl.max(tl.abs(one), 1), tl.max(tl.abs(other), 1))
    # A maximum may drop a NaN.
    is_finite = (tl.abs(one) < float("inf")) & (tl.abs(other) < float("inf"))
    is_known = tl.min(is_finite.to(tl.int32), 1) == 1
    is_rounded = is_known & (most >= SMALLEST)
    scales = _to_bfloat16(
        tl.div_rn(tl.where(is_rounded, most, 1.0), tl.full(most.shape, LARGEST, tl.float32))
    )
    inverse = tl.div_rn(tl.full(most.shape, 1.0, tl.float32), scales)[:, None]
    one = tl.where(is_rounded[:, None], one * inverse, 0.0)
    other = tl.where(is_rounded[:, None], other * inverse, 0.0)
    scales = tl.where(is_rounded, scales, tl.where(is_known, 0.0, float("nan")))
    return scales, one, other


@triton.jit  # type: ignore[untyped-decorator]
def _to_bfloat16(x: tl.tensor) -> tl.tensor:
    """Round finite float32 numbers to those of bfloat16. The interpreter's own conversion cuts them off."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _to_multiple(x: tl.tensor, STEP: tl.constexpr) -> tl.tensor:  # noqa: N803
    """Round to multiples of a power of two, ties to even."""
    # Beside 1.5 * 2^23 steps float32 has whole steps only.
    return (x + 12582912.0 * STEP) - 12582912.0 * STEP


@triton.jit  # type: ignore[untyped-decorator]
def _to_float8(x: tl.tensor) -> tl.tensor:
    """Round to the numbers of float8_e4m3. The interpreter's own conversion errs where a power is reached."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -1048576).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < 0.015625, _to_multiple(x, 0.001953125), normal)


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
    data, cache_scales, strides = launch_cache(kv_cache)
    _rotary_kv_write_kernel[(num_tokens, triton.cdiv(num_all, HEADS_AT_ONCE))](
        qkv, query, data, cache_scales, positions, qkv if table is None else table, cache_slots, *scales,
        qkv.stride(0), sines, *strides, HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads,
        HALF=heads.head_dim // 2, HAS_NORMS=norms is not None, HAS_ANGLES=table is not None,
        BLOCK_SIZE=kv_cache.block_size, BLOCK_HEADS=HEADS_AT_ONCE,
        LARGEST=LARGEST.get(kv_cache.format, 0), SMALLEST=SMALLEST,
        BLOCK=triton.next_power_of_2(heads.head_dim // 2), enable_fp_fusion=False,
    )  # fmt: skip
    return query
