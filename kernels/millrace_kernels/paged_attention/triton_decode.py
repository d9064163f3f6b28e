"""Decode for GPUs: rows of one query, with keys in spans. README.md has the maths."""

import triton
import triton.language as tl

from millrace_kernels.paged_attention.triton_tile import visit_tile, weigh_sink

SPANS_AT_ONCE = 16
"""Spans merged at a time."""
MERGE_WARPS = 1
"""A single warp needs no shared memory. Decode of 256 sequences of 512 tokens takes 213 us with 1, 232 us
with 4."""


# The number of rows changes from step to step. Without this, Triton would compile again for 1 and multiples
# of 16.
@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]  # triton ships no types
def _decode_kernel(  # noqa: PLR0917
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    sinks_ptr: tl.tensor,
    output_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    mixed_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    contexts_ptr: tl.tensor,
    ends_ptr: tl.tensor,
    owners_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    scale: tl.tensor,
    num_rows: tl.tensor,
    query_stride_token: tl.tensor,
    query_stride_head: tl.tensor,
    kv_stride_block: tl.tensor,
    kv_stride_part: tl.tensor,
    kv_stride_head: tl.tensor,
    kv_stride_offset: tl.tensor,
    scales_stride_block: tl.tensor,
    scales_stride_part: tl.tensor,
    scales_stride_head: tl.tensor,
    output_stride_token: tl.tensor,
    output_stride_head: tl.tensor,
    tables_stride: tl.tensor,
    KV_HEADS: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    WINDOW: tl.constexpr,  # noqa: N803  0: none
    LEAST_KEYS: tl.constexpr,  # noqa: N803
    MOST_SPANS: tl.constexpr,  # noqa: N803
    KEYS_UNIT: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_D: tl.constexpr,  # noqa: N803
    DOT_IN_FLOAT32: tl.constexpr,  # noqa: N803
    HAS_SCALES: tl.constexpr,  # noqa: N803
    HAS_SINKS: tl.constexpr,  # noqa: N803
) -> None:
    lanes = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    is_head = lanes < GROUP
    is_dim = dims < HEAD_DIM
    num_parts = tl.load(ends_ptr + num_rows - 1) * KV_HEADS
    for part in range(tl.program_id(0), num_parts, tl.num_programs(0)):
        span = part // KV_HEADS
        kv_head = part % KV_HEADS
        row = tl.load(owners_ptr + span)
        first_span = tl.load(ends_ptr + row - 1, mask=row > 0, other=0)
        num_spans = tl.load(ends_ptr + row) - first_span
        context = tl.load(contexts_ptr + row)
        # `split_kv.count_span_keys`
        seen = tl.minimum(context, WINDOW) if WINDOW else context
        keys = tl.maximum(tl.cdiv(seen, MOST_SPANS * KEYS_UNIT) * KEYS_UNIT, LEAST_KEYS)
        begin = (span - first_span) * keys
        if WINDOW:
            begin += context - seen
        stop = tl.minimum(begin + keys, context)
        token = tl.load(starts_ptr + row).to(tl.int64)
        slot = tl.load(slots_ptr + row).to(tl.int64)
        heads = kv_head * GROUP + lanes
        query = tl.load(
            query_ptr + token * query_stride_token + heads[:, None] * query_stride_head + dims[None, :],
            mask=is_head[:, None] & is_dim[None, :],
            other=0.0,
        )
        if DOT_IN_FLOAT32:
            query = query.to(tl.float32)

        best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        position = tl.zeros((BLOCK_M,), tl.int32) + context - 1
        table_ptr = tables_ptr + slot * tables_stride
        mine_ptr = kv_ptr + kv_head * kv_stride_head
        my_scales_ptr = scales_ptr + kv_head * scales_stride_head
        whole = begin + (stop - begin) // BLOCK_N * BLOCK_N
        for tile in range(begin, whole, BLOCK_N):
            best, total, mixed = visit_tile(
                query, best, total, mixed, position, tile, tile, stop, table_ptr, mine_ptr,
                my_scales_ptr, scale, kv_stride_block, kv_stride_part, kv_stride_offset,
                scales_stride_block, scales_stride_part, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, 0, True,
                HAS_SCALES, query_ptr.dtype.element_ty,
            )  # fmt: skip
        if whole < stop:
            best, total, mixed = visit_tile(
                query, best, total, mixed, position, whole, whole, stop, table_ptr, mine_ptr,
                my_scales_ptr, scale, kv_stride_block, kv_stride_part, kv_stride_offset,
                scales_stride_block, scales_stride_part, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, 0, False,
                HAS_SCALES, query_ptr.dtype.element_ty,
            )  # fmt: skip

        is_number = is_head[:, None] & is_dim[None, :]
        if num_spans == 1:
            if HAS_SINKS:
                total += weigh_sink(tl.load(sinks_ptr + heads, mask=is_head, other=0.0), best)
            place = token * output_stride_token + heads * output_stride_head
            where = output_ptr + place[:, None] + dims[None, :]
            tl.store(where, (mixed / total[:, None]).to(output_ptr.dtype.element_ty), mask=is_number)
        else:
            line = (span * KV_HEADS * GROUP + heads).to(tl.int64)
            tl.store(sums_ptr + line * 2, best, mask=is_head)
            tl.store(sums_ptr + line * 2 + 1, total, mask=is_head)
            tl.store(mixed_ptr + line[:, None] * HEAD_DIM + dims[None, :], mixed, mask=is_number)


@triton.jit  # type: ignore[untyped-decorator]
def _merge_kernel(  # noqa: PLR0917
    sums_ptr: tl.tensor,
    mixed_ptr: tl.tensor,
    sinks_ptr: tl.tensor,
    output_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    ends_ptr: tl.tensor,
    output_stride_token: tl.tensor,
    output_stride_head: tl.tensor,
    HEADS: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    BLOCK_D: tl.constexpr,  # noqa: N803
    HAS_SINKS: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(starts_ptr + row)
    begin = tl.load(ends_ptr + row - 1, mask=row > 0, other=0)
    end = tl.load(ends_ptr + row)
    # A lone span's result is already there.
    if (tl.load(starts_ptr + row + 1) - token == 1) & (end - begin != 1):
        dims = tl.arange(0, BLOCK_D)
        is_dim = dims < HEAD_DIM
        spans = tl.arange(0, SPANS)
        # A finite start: a padding row of a graph's batch has no keys and no span, and gets zeros.
        best = tl.full((), -1.0e30, tl.float32)
        total = tl.zeros((), tl.float32)
        mixed = tl.zeros((BLOCK_D,), tl.float32)
        for tile in range(begin, end, SPANS):
            at = tile + spans
            is_span = at < end
            line = at.to(tl.int64) * HEADS + head
            peak = tl.load(sums_ptr + line * 2, mask=is_span, other=float("-inf"))
            share = tl.load(sums_ptr + line * 2 + 1, mask=is_span, other=0.0)
            part = tl.load(
                mixed_ptr + line[:, None] * HEAD_DIM + dims[None, :],
                mask=is_span[:, None] & is_dim[None, :],
                other=0.0,
            )
            now = tl.maximum(best, tl.max(peak, 0))
            weight = tl.exp2(peak - now)
            shrink = tl.exp2(best - now)
            total = total * shrink + tl.sum(share * weight, 0)
            mixed = mixed * shrink + tl.sum(part * weight[:, None], 0)
            best = now
        if HAS_SINKS:
            total += weigh_sink(tl.load(sinks_ptr + head), best)
        total = tl.where(end > begin, total, 1.0)
        where = output_ptr + token.to(tl.int64) * output_stride_token + head * output_stride_head + dims
        tl.store(where, (mixed / total).to(output_ptr.dtype.element_ty), mask=is_dim)
