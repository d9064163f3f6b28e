"""Steps 9 to 11 of README.md, among a row's candidates."""

import triton
import triton.language as tl

from millrace_kernels.sampling.triton_draw import _find_place
from millrace_kernels.sampling.triton_table import (
    COLUMNS,
    FOUND,
    INVERSE,
    LEAST,
    POSITION,
    SEED,
    SHARE,
    SLOT,
    TOP_K,
)
from millrace_kernels.sampling.triton_weights import (
    NO_KEY,
    WHOLE_SHARE,
    float_of,
    fraction,
    from_key,
    random_bits,
    to_key,
    weigh,
)


@triton.jit  # type: ignore[untyped-decorator]
def _search(  # noqa: PLR0917
    values_ptr: tl.tensor,
    count: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    wanted: tl.tensor,
    peak: tl.tensor,
    inverse: tl.tensor,
    least: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
    TRIED: tl.constexpr,  # noqa: N803
    IS_COUNT: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor]:
    """Return the largest key at which the tokens from it upwards reach a bound, and the sum above it.

    The sum is their number or their weight. It reaches the bound from `low` upwards, and is 0 from `high`.
    """
    above = tl.zeros((), tl.int64)
    lanes = tl.arange(0, BLOCK)
    while high - low > 1:
        width = (high - low + TRIED - 1) // TRIED
        tried = low + width * (1 + tl.arange(0, TRIED))
        summed = tl.zeros((BLOCK, TRIED), tl.int64)
        for begin in range(0, count, BLOCK):
            at = begin + lanes
            z = tl.load(values_ptr + at, mask=at < count, other=float("-inf"))
            if IS_COUNT:
                each = (at < count).to(tl.int64)
            else:
                each = tl.where(at < count, weigh(z, peak, inverse, least), 0)
            is_above = to_key(z).to(tl.int64)[:, None] >= tried[None, :]
            summed += tl.where(is_above, each[:, None], 0)
        reached = tl.sum(summed, 0)
        enough = tl.sum(((reached >= wanted) & (tried < high)).to(tl.int64), 0)
        next_high = low + width * (enough + 1)
        is_lower = next_high < high
        above = tl.where(is_lower, tl.sum(tl.where(tried == next_high, reached, 0), 0), above)
        high = tl.where(is_lower, next_high, high)
        low = low + width * enough
    return low, above


@triton.jit  # type: ignore[untyped-decorator]
def _weigh_above(  # noqa: PLR0917
    values_ptr: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    peak: tl.tensor,
    inverse: tl.tensor,
    least: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the weight of the tokens whose key is above a bound."""
    total = tl.zeros((), tl.int64)
    for begin in range(0, count, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        z = tl.load(values_ptr + at, mask=at < count, other=float("-inf"))
        is_above = (at < count) & (to_key(z) > bound)
        total += tl.sum(tl.where(is_above, weigh(z, peak, inverse, least), 0), 0)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _draw_from_kept(  # noqa: PLR0917
    values_ptr: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    num_ties: tl.tensor,
    peak: tl.tensor,
    inverse: tl.tensor,
    least: tl.tensor,
    target: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the index of the first kept token at which their sum is above the target: step 11.

    Tokens with a key above the bound are kept, and the first `num_ties` of those with a key at the bound.
    """
    found = tl.zeros((), tl.int32)
    running = tl.zeros((), tl.int64)
    ties = tl.zeros((), tl.int64)
    for begin in range(0, count, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        z = tl.load(values_ptr + at, mask=at < count, other=float("-inf"))
        key = to_key(z)
        is_tie = (at < count) & (key == bound)
        rank = ties + tl.cumsum(is_tie.to(tl.int64), 0)
        is_kept = (at < count) & ((key > bound) | (is_tie & (rank <= num_ties)))
        weight = tl.where(is_kept, weigh(z, peak, inverse, least), 0)
        place, running, is_here = _find_place(weight, running, target)
        found = tl.where(is_here, begin + place, found)
        ties += tl.sum(is_tie.to(tl.int64), 0)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _cut_kernel(  # noqa: PLR0917
    table_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    found_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    known_ptr: tl.tensor,
    sampled_ptr: tl.tensor,
    known_stride: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
    TRIED: tl.constexpr,  # noqa: N803
) -> None:
    """Draw among a row's candidates: steps 9 to 11."""
    cut_row = tl.program_id(0).to(tl.int64)
    found_ptr += cut_row * FOUND
    count = tl.load(found_ptr).to(tl.int32)
    if count > 0:
        total = tl.load(found_ptr + 1)
        peak = tl.load(found_ptr + 2).to(tl.int32).to(tl.float32, bitcast=True)
        number = tl.load(rows_ptr + cut_row)
        line = table_ptr + number * COLUMNS
        inverse = float_of(line + INVERSE)
        top_k = tl.load(line + TOP_K)
        share = tl.load(line + SHARE)
        least = tl.load(line + LEAST)
        mine_ptr = values_ptr + cut_row * vocabulary
        is_top_k = (top_k > 0) & (top_k < vocabulary)
        bound = tl.zeros((), tl.int64) + NO_KEY
        num_ties = tl.zeros((), tl.int64)
        end = to_key(peak).to(tl.int64) + 1
        if is_top_k:
            bound, above = _search(
                mine_ptr, count, bound, end, top_k, peak, inverse, least, BLOCK, TRIED, True
            )
            num_ties = top_k - above
            each = weigh(from_key(bound.to(tl.int32)), peak, inverse, least)
            total = num_ties * each + _weigh_above(mine_ptr, count, bound, peak, inverse, least, BLOCK)
        if share < WHOLE_SHARE:
            need = tl.maximum(fraction(total, share), 1)
            low, above = _search(mine_ptr, count, bound, end, need, peak, inverse, least, BLOCK, TRIED, False)
            each = tl.maximum(weigh(from_key(low.to(tl.int32)), peak, inverse, least), 1)
            wanted = (need - above + each - 1) // each
            num_ties = tl.where(is_top_k & (low == bound), tl.minimum(num_ties, wanted), wanted)
            bound = low
            total = above + num_ties * each
        position = tl.load(line + POSITION)
        target = fraction(total, random_bits(tl.load(line + SEED), position))
        place = _draw_from_kept(mine_ptr, count, bound, num_ties, peak, inverse, least, target, BLOCK)
        token = tl.load(ids_ptr + cut_row * vocabulary + place).to(tl.int64)
        tl.store(known_ptr + tl.load(line + SLOT) * known_stride + position, token)
        tl.store(sampled_ptr + number, token)
