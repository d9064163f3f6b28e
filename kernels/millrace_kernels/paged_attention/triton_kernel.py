"""Paged attention for GPUs: online softmax, a group's query heads folded into one tile (README.md)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_KEYS = 64
MIN_DOT = 16
"""tl.dot wants at least 16 in each dimension."""


# Both change from step to step, and a kernel is compiled anew for 1 and for multiples of 16.
@triton.jit(do_not_specialize=["num_rows", "tables_stride"])  # type: ignore[untyped-decorator]  # triton ships no types
def _paged_attention_kernel(  # noqa: PLR0917
    query_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    output_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    contexts_ptr: tl.tensor,
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
    program = tl.program_id(0)
    kv_head = tl.program_id(1)

    # Row r owns the programs from starts[r] // BLOCK_Q + r: find the last row that begins here or before.
    low = tl.zeros((), tl.int32)
    high = tl.zeros((), tl.int32) + num_rows
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(starts_ptr + middle) // BLOCK_Q + middle
        low = tl.where(begins <= program, middle, low)
        high = tl.where(begins <= program, high, middle)
    row = low
    start = tl.load(starts_ptr + row)
    num_queries = tl.load(starts_ptr + row + 1) - start
    first = (program - (start // BLOCK_Q + row)) * BLOCK_Q
    if first < num_queries:
        context = tl.load(contexts_ptr + row)
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
                tables_ptr + row.to(tl.int64) * tables_stride + at // BLOCK_SIZE, mask=is_written, other=0
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
            weights = tl.exp(scores - now[:, None])
            shrink = tl.exp(best - now)
            total = total * shrink + tl.sum(weights, 1)
            mixed = mixed * shrink[:, None]
            # Rounded as values are stored: the interpreter's dot is float32, and is to round like a GPU's.
            mixed += tl.dot(
                weights.to(kv_ptr.dtype.element_ty).to(value.dtype), value, input_precision="ieee"
            )
            best = now

        tl.store(
            output_ptr
            + token[:, None] * output_stride_token
            + heads[:, None] * output_stride_head
            + dims[None, :],
            (mixed / total[:, None]).to(output_ptr.dtype.element_ty),
            mask=is_query[:, None] & is_dim[None, :],
        )


def paged_attention(  # noqa: PLR0917
    query: Tensor,
    kv_cache: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    scale: float,
) -> Tensor:
    """Launch the kernel; shapes as in `paged_attention_reference`, the integers int32.

    The last dimension of query and kv_cache must be contiguous. Tokens of no row get zeros.
    """
    num_tokens, num_heads, head_dim = query.shape
    kv_heads, num_rows = kv_cache.shape[2], context_lengths.shape[0]
    group = num_heads // kv_heads
    block_m = max(MIN_DOT, triton.next_power_of_2(group))
    block_q = block_m // group
    output = torch.zeros_like(query)
    if num_rows == 0:
        return output
    _paged_attention_kernel[(num_tokens // block_q + num_rows, kv_heads)](
        query, kv_cache, output, query_starts, context_lengths, block_tables, scale, num_rows,
        query.stride(0), query.stride(1), *kv_cache.stride()[:4], output.stride(0), output.stride(1),
        block_tables.stride(0),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=kv_cache.shape[3], BLOCK_Q=block_q, BLOCK_M=block_m,
        BLOCK_N=BLOCK_KEYS, BLOCK_D=max(MIN_DOT, triton.next_power_of_2(head_dim)),
        # The interpreter keeps bfloat16 as raw bits, and its dot would multiply those.
        DOT_IN_FLOAT32=triton.knobs.runtime.interpret,
    )  # fmt: skip
    return output
