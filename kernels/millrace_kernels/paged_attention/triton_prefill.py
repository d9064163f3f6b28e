"""Prefill for GPUs: rows of several queries, in tiles that read each key once for all their queries."""

import triton
import triton.language as tl

from millrace_kernels.paged_attention.triton_tile import visit_tile, weigh_sink


# The number of rows changes from step to step. Without this, Triton would compile again for 1 and multiples
# of 16.
@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]  # triton ships no types
def _prefill_kernel(  # noqa: PLR0917
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    sinks_ptr: tl.tensor,
    output_ptr: tl.tensor,
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
    WINDOW: tl.constexpr,  # noqa: N803  0: none
    GROUP: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    BLOCK_Q: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_D: tl.constexpr,  # noqa: N803
    DOT_IN_FLOAT32: tl.constexpr,  # noqa: N803
    HAS_SCALES: tl.constexpr,  # noqa: N803
    HAS_SINKS: tl.constexpr,  # noqa: N803
) -> None:
    # The last tile of a row has the most keys: it starts first, so that it does not end long after the
    # others.
    tile = tl.load(ends_ptr + num_rows - 1) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    if tile >= 0:
        row = tl.load(owners_ptr + tile)
        start = tl.load(starts_ptr + row)
        num_queries = tl.load(starts_ptr + row + 1) - start
        first = (tile - tl.load(ends_ptr + row - 1, mask=row > 0, other=0)) * BLOCK_Q
        context = tl.load(contexts_ptr + row)
        slot = tl.load(slots_ptr + row).to(tl.int64)
        lanes = tl.arange(0, BLOCK_M)
        dims = tl.arange(0, BLOCK_D)
        in_row = first + lanes // GROUP
        is_query = (lanes < BLOCK_Q * GROUP) & (in_row < num_queries)
        is_dim = dims < HEAD_DIM
        heads = kv_head * GROUP + lanes % GROUP
        token = (start + in_row).to(tl.int64)
        query = tl.load(
            query_ptr
            + token[:, None] * query_stride_token
            + heads[:, None] * query_stride_head
            + dims[None, :],
            mask=is_query[:, None] & is_dim[None, :],
            other=0.0,
        )
        if DOT_IN_FLOAT32:
            query = query.to(tl.float32)
        before = context - num_queries + first  # keys that all queries of the tile see, without their own
        stop = tl.minimum(before + BLOCK_Q, context)
        # A lane without a query sees what the last one sees, so that its sum is not zero. It is never stored.
        position = tl.where(is_query, context - num_queries + in_row, stop - 1)

        # A finite start: the window of a query may begin behind the first tile.
        best = tl.full((BLOCK_M,), -1.0e30, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        table_ptr = tables_ptr + slot * tables_stride
        mine_ptr = kv_ptr + kv_head * kv_stride_head
        my_scales_ptr = scales_ptr + kv_head * scales_stride_head
        first_key = 0
        seen_by_all = 0
        whole = (before + 1) // BLOCK_N * BLOCK_N
        if WINDOW:
            first_key = tl.maximum(before + 1 - WINDOW, 0)
            seen_by_all = tl.cdiv(tl.maximum(stop - WINDOW, 0), BLOCK_N) * BLOCK_N
            for begin in range(first_key // BLOCK_N * BLOCK_N, seen_by_all, BLOCK_N):
                best, total, mixed = visit_tile(
                    query, best, total, mixed, position, begin, first_key, stop, table_ptr, mine_ptr,
                    my_scales_ptr, scale, kv_stride_block, kv_stride_part, kv_stride_offset,
                    scales_stride_block, scales_stride_part, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D,
                    WINDOW, False, HAS_SCALES, query_ptr.dtype.element_ty,
                )  # fmt: skip
        for begin in range(seen_by_all, whole, BLOCK_N):
            best, total, mixed = visit_tile(
                query, best, total, mixed, position, begin, first_key, stop, table_ptr, mine_ptr,
                my_scales_ptr, scale, kv_stride_block, kv_stride_part, kv_stride_offset,
                scales_stride_block, scales_stride_part, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D,
                WINDOW, True, HAS_SCALES, query_ptr.dtype.element_ty,
            )  # fmt: skip
        for begin in range(tl.maximum(seen_by_all, whole), stop, BLOCK_N):
            best, total, mixed = visit_tile(
                query, best, total, mixed, position, begin, first_key, stop, table_ptr, mine_ptr,
                my_scales_ptr, scale, kv_stride_block, kv_stride_part, kv_stride_offset,
                scales_stride_block, scales_stride_part, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D,
                WINDOW, False, HAS_SCALES, query_ptr.dtype.element_ty,
            )  # fmt: skip

        if HAS_SINKS:
            total += weigh_sink(tl.load(sinks_ptr + heads), best)
        tl.store(
            output_ptr
            + token[:, None] * output_stride_token
            + heads[:, None] * output_stride_head
            + dims[None, :],
            (mixed / total[:, None]).to(output_ptr.dtype.element_ty),
            mask=is_query[:, None] & is_dim[None, :],
        )
