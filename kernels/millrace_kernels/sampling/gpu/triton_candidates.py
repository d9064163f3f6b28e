"""Steps 9 to 11 of README.md, among a row's candidates."""

import triton
import triton.language as tl

from millrace_kernels.sampling.gpu.triton_penalties import read_logits
from millrace_kernels.sampling.gpu.triton_table import SHARE, TOP_K, WHOLE_SHARE, is_top_k
from millrace_kernels.sampling.gpu.triton_weights import (
    MOST_KEY,
    bucket_of,
    fraction,
    from_key,
    to_key,
    weigh,
)


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def find_place(
    weight: tl.tensor, running: tl.tensor, target: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the index at which the sum passes the target, the sum after the block, and whether it does."""
    upto = running + tl.cumsum(weight, 0)
    after = running + tl.sum(weight, 0)
    return tl.sum((upto <= target).to(tl.int32), 0), after, (running <= target) & (after > target)


@triton.jit  # type: ignore[untyped-decorator]
def _read(candidates: tl.tuple, row: tl.tuple, at: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the logits of candidates, and which of these there are.

    They are stored, or else found among the whole row: then `at` are ids.
    """
    values_ptr, is_stored, end, last, peak, inverse, least = candidates
    if is_stored:
        is_there = at < end
        z = tl.load(values_ptr + at, mask=is_there, other=float("-inf"))
    else:
        _x, z = read_logits(row, at)
        has_weight = (at < end) & (weigh(z, peak, inverse, least) > 0)
        is_there = has_weight & (bucket_of(z, peak, inverse) <= last)
    return z, is_there


@triton.jit  # type: ignore[untyped-decorator]
def _find_lowest(
    candidates: tl.tuple,
    row: tl.tuple,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the lowest key of the candidates."""
    _, _, end, _, _, _, _ = candidates
    lowest = tl.full((), MOST_KEY, tl.int32)
    for begin in range(0, end, BLOCK):
        z, is_there = _read(candidates, row, begin + tl.arange(0, BLOCK))
        lowest = tl.minimum(lowest, tl.min(tl.where(is_there, to_key(z), MOST_KEY), 0))
    return lowest.to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def _search(  # noqa: PLR0917
    candidates: tl.tuple,
    row: tl.tuple,
    low: tl.tensor,
    high: tl.tensor,
    wanted: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
    TRIED: tl.constexpr,  # noqa: N803
    IS_COUNT: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor]:
    """Return the largest key at which the tokens from it upwards reach a bound, and the sum above it.

    The sum is their number or their weight. It reaches the bound from `low` upwards, and is 0 from `high`.
    """
    _, _, end, _, peak, inverse, least = candidates
    above = tl.zeros((), tl.int64)
    lanes = tl.arange(0, BLOCK)
    while high - low > 1:
        width = (high - low + TRIED - 1) // TRIED
        tried = low + width * (1 + tl.arange(0, TRIED))
        summed = tl.zeros((BLOCK, TRIED), tl.int64)
        for begin in range(0, end, BLOCK):
            z, is_there = _read(candidates, row, begin + lanes)
            if IS_COUNT:
                each = is_there.to(tl.int64)
            else:
                each = tl.where(is_there, weigh(z, peak, inverse, least), 0)
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
def _weigh_above(
    candidates: tl.tuple,
    row: tl.tuple,
    bound: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the weight of the tokens whose key is above a bound."""
    _, _, end, _, peak, inverse, least = candidates
    total = tl.zeros((), tl.int64)
    for begin in range(0, end, BLOCK):
        z, is_there = _read(candidates, row, begin + tl.arange(0, BLOCK))
        is_above = is_there & (to_key(z) > bound)
        total += tl.sum(tl.where(is_above, weigh(z, peak, inverse, least), 0), 0)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _draw_from_kept(  # noqa: PLR0917
    candidates: tl.tuple,
    row: tl.tuple,
    bound: tl.tensor,
    num_ties: tl.tensor,
    target: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the index of the first kept token at which their sum is above the target: step 11.

    Tokens with a key above the bound are kept, and the first `num_ties` of those with a key at the bound.
    """
    _, _, end, _, peak, inverse, least = candidates
    found = tl.zeros((), tl.int32)
    running = tl.zeros((), tl.int64)
    ties = tl.zeros((), tl.int64)
    for begin in range(0, end, BLOCK):
        z, is_there = _read(candidates, row, begin + tl.arange(0, BLOCK))
        key = to_key(z)
        is_tie = is_there & (key == bound)
        rank = ties + tl.cumsum(is_tie.to(tl.int64), 0)
        is_kept = is_there & ((key > bound) | (is_tie & (rank <= num_ties)))
        weight = tl.where(is_kept, weigh(z, peak, inverse, least), 0)
        place, running, is_here = find_place(weight, running, target)
        found = tl.where(is_here, begin + place, found)
        ties += tl.sum(is_tie.to(tl.int64), 0)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def draw_from_candidates(  # noqa: PLR0917
    candidates: tl.tuple,
    row: tl.tuple,
    line: tl.tensor,
    num_candidates: tl.tensor,
    total: tl.tensor,
    bits: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
    TRIED: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the index of the drawn candidate: steps 9 to 11. `total` is the sum of all weights."""
    _, _, _, _, peak, inverse, least = candidates
    share = tl.load(line + SHARE)
    bound = _find_lowest(candidates, row, BLOCK)
    num_ties = tl.zeros((), tl.int64)
    end = to_key(peak).to(tl.int64) + 1
    has_top_k = is_top_k(line, vocabulary)
    if has_top_k:
        top_k = tl.minimum(tl.load(line + TOP_K), num_candidates)  # the others have no weight
        bound, above = _search(candidates, row, bound, end, top_k, BLOCK, TRIED, True)
        num_ties = top_k - above
        each = weigh(from_key(bound.to(tl.int32)), peak, inverse, least)
        total = num_ties * each + _weigh_above(candidates, row, bound, BLOCK)
    if share < WHOLE_SHARE:
        need = tl.maximum(fraction(total, share), 1)
        low, above = _search(candidates, row, bound, end, need, BLOCK, TRIED, False)
        each = tl.maximum(weigh(from_key(low.to(tl.int32)), peak, inverse, least), 1)
        wanted = (need - above + each - 1) // each
        num_ties = tl.where(has_top_k & (low == bound), tl.minimum(num_ties, wanted), wanted)
        bound = low
        total = above + num_ties * each
    return _draw_from_kept(candidates, row, bound, num_ties, fraction(total, bits), BLOCK)
