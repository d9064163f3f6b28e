"""Prefill for GPUs: rows of several queries, in tiles that read each key once for all their queries."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _find_row(
    starts_ptr: tl.tensor,
    program: tl.tensor,
    num_rows: tl.tensor,
    BLOCK_Q: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the program's row: the last whose first program, starts[r] // BLOCK_Q + r, is not behind it."""
    low = tl.zeros((), tl.int32)
    high = tl.zeros((), tl.int32) + num_rows
    while high - low > 1:
        middle = (low + high) // 2
        is_before = tl.load(starts_ptr + middle) // BLOCK_Q + middle <= program
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    return low


# The number of rows changes from step to step, and a kernel is compiled anew for 1 and for multiples of 16.
@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _prefill_kernel(  # noqa: PLR0917
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    output_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    contexts_ptr: tl.tensor,
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
    output_stride_token: tl.tensor,
    output_stride_head: tl.tensor,
    tables_stride: tl.tensor,
    GROUP: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    BLOCK_Q: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_D: tl.constexpr,  # noqa: N803
    DOT_IN_FLOAT32: tl.constexpr,  # noqa: N803
) -> None:
    # The last tile of a row sees the most keys: begun first, it does not end long after the others.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)

    row = _find_row(starts_ptr, program, num_rows, BLOCK_Q)
    start = tl.load(starts_ptr + row)
    num_queries = tl.load(starts_ptr + row + 1) - start
    first = (program - (start // BLOCK_Q + row)) * BLOCK_Q
    if (first < num_queries) & (num_queries > 1):
        context = tl.load(contexts_ptr + row)
        slot = tl.load(slots_ptr + row).to(tl.int64)
        lanes = tl.arange(0, BLOCK_M)
        dims = tl.arange(0, BLOCK_D)
        keys = tl.arange(0, BLOCK_N)
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
        position = context - num_queries + in_row
        stop = tl.minimum(context - num_queries + first + BLOCK_Q, context)

        best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        for begin in range(0, stop, BLOCK_N):
            at = begin + keys
            is_written = at < stop
            block = tl.load(
                tables_ptr + slot * tables_stride + at // BLOCK_SIZE, mask=is_written, other=0
            ).to(tl.int64)
            line = block * kv_stride_block + kv_head * kv_stride_head + (at % BLOCK_SIZE) * kv_stride_offset
            where = kv_ptr + line[:, None] + dims[None, :]
            wanted = is_written[:, None] & is_dim[None, :]
            key = tl.load(where, mask=wanted, other=0.0).to(query.dtype)
            value = tl.load(where + kv_stride_part, mask=wanted, other=0.0).to(query.dtype)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            # A lane without a query sees key 0, so that its maximum is finite; it is never stored.
            is_seen = (at[None, :] <= position[:, None]) | (~is_query[:, None] & (at[None, :] == 0))
            scores = tl.where(is_seen & is_written[None, :], scores, float("-inf"))
            now = tl.maximum(best, tl.max(scores, 1))
            weights = tl.exp2(scores - now[:, None])
            shrink = tl.exp2(best - now)
            total = total * shrink + tl.sum(weights, 1)
            mixed = mixed * shrink[:, None]
            # Rounded as values are stored: the interpreter's dot is float32, and is to round like a GPU's.
            weights = weights.to(kv_ptr.dtype.element_ty).to(value.dtype)
            mixed += tl.dot(weights, value, input_precision="ieee")
            best = now

        tl.store(
            output_ptr
            + token[:, None] * output_stride_token
            + heads[:, None] * output_stride_head
            + dims[None, :],
            (mixed / total[:, None]).to(output_ptr.dtype.element_ty),
            mask=is_query[:, None] & is_dim[None, :],
        )
