"""One tile of keys and values of the Triton kernels: the online softmax of README.md."""

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))
MOST_EXPONENT = tl.constexpr(126.0)


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def weigh_sink(sink: tl.tensor, best: tl.tensor) -> tl.tensor:
    """Return what a sink adds to a sum under the maximum `best`: bounded, and NaN for a sink that is NaN."""
    exponent = sink * LOG2_E - best
    return tl.exp2(tl.where(exponent > MOST_EXPONENT, MOST_EXPONENT, exponent))


@triton.jit  # type: ignore[untyped-decorator]
def visit_tile(  # noqa: PLR0917
    query: tl.tensor,
    best: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    position: tl.tensor,
    begin: tl.tensor,
    first: tl.tensor,
    stop: tl.tensor,
    table_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    scale: tl.tensor,
    kv_stride_block: tl.tensor,
    kv_stride_part: tl.tensor,
    kv_stride_offset: tl.tensor,
    scales_stride_block: tl.tensor,
    scales_stride_part: tl.tensor,
    HEAD_DIM: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_D: tl.constexpr,  # noqa: N803
    WINDOW: tl.constexpr,  # noqa: N803
    IS_SEEN: tl.constexpr,  # noqa: N803
    HAS_SCALES: tl.constexpr,  # noqa: N803
    WEIGHTS: tl.constexpr,  # noqa: N803  the type that weights are rounded to: the model's
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the maxima, sums and mixed values, updated with the tile that begins at key `begin`.

    Its keys before `first` and from `stop` on are not read. A lane sees the keys up to its position, and with
    a WINDOW only so many. With IS_SEEN every lane sees the whole tile, without a mask.
    """
    at = begin + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    wanted = (dims < HEAD_DIM)[None, :]
    if IS_SEEN:
        block = tl.load(table_ptr + at // BLOCK_SIZE)
    else:
        is_read = at < stop
        if WINDOW:
            is_read = is_read & (at >= first)
        block = tl.load(table_ptr + at // BLOCK_SIZE, mask=is_read, other=0)
        wanted = wanted & is_read[:, None]
    line = block.to(tl.int64) * kv_stride_block + (at % BLOCK_SIZE) * kv_stride_offset
    where = kv_ptr + line[:, None] + dims[None, :]
    scale_line = scales_ptr + block.to(tl.int64) * scales_stride_block + at % BLOCK_SIZE
    key = tl.load(where, mask=wanted, other=0.0).to(query.dtype)
    value = tl.load(where + kv_stride_part, mask=wanted, other=0.0).to(query.dtype)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if HAS_SCALES:
        if IS_SEEN:
            scores = scores * tl.load(scale_line).to(tl.float32)[None, :]
        else:
            scores = scores * tl.load(scale_line, mask=is_read, other=0.0).to(tl.float32)[None, :]
    if not IS_SEEN:
        is_key = at[None, :] <= position[:, None]
        if WINDOW:
            is_key = is_key & (at[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_key, scores, float("-inf"))
    now = tl.maximum(best, tl.max(scores, 1) * scale)
    # Written as separate operations: otherwise the compiler might round differently with a mask, and the
    # chunks of a prompt decide which tiles have one.
    weights = tl.exp2(tl.fma(scores, scale, -now[:, None]))
    shrink = tl.exp2(best - now)
    total = total * shrink + tl.sum(weights, 1)
    if HAS_SCALES:
        scale_line += scales_stride_part
        if IS_SEEN:
            weights = weights * tl.load(scale_line).to(tl.float32)[None, :]
        else:
            weights = weights * tl.load(scale_line, mask=is_read, other=0.0).to(tl.float32)[None, :]
    # Rounded to the model's type: the interpreter's dot is float32, and must round like a GPU's.
    rounded = weights.to(WEIGHTS).to(value.dtype)
    mixed = mixed * shrink[:, None] + tl.dot(rounded, value, input_precision="ieee")
    return now, total, mixed
