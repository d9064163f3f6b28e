"""Step 10 of README.md in flat rows: top_p keeps too many tokens for one program.

All programs of such a row look for the key at which top_p cuts, a digit in each launch: a radix selection.
"""

import triton
import triton.language as tl

from millrace_kernels.sampling.gpu.triton_chunks import (
    ABOVE,
    BOUNDS,
    NUM_CANDIDATES,
    PLANES,
    SUMS,
    TIES,
    VALUES,
    find_peak,
    load_plane,
    open_found,
)
from millrace_kernels.sampling.gpu.triton_penalties import open_row, read_logits
from millrace_kernels.sampling.gpu.triton_table import (
    COLUMNS,
    INVERSE,
    LEAST,
    SHARE,
    WHOLE_SHARE,
    float_of,
    is_cut,
    is_top_k,
)
from millrace_kernels.sampling.gpu.triton_weights import (
    DIGIT_BITS,
    NUM_DIGITS,
    RADIX,
    fraction,
    from_digits,
    to_digits,
    weigh,
)


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def is_flat(line: tl.tensor, numbers: tl.tensor, vocabulary: tl.tensor, ROOM: tl.constexpr) -> tl.tensor:  # noqa: N803
    """Return whether a row has more candidates than room, by top_p alone. It has no meaning with a fault."""
    is_many = tl.load(line + SHARE) < WHOLE_SHARE  # most rows end here
    if is_many:
        is_many = is_cut(line, vocabulary) & ~is_top_k(line, vocabulary)
        if is_many:
            is_many = tl.load(numbers + NUM_CANDIDATES) > ROOM
    return is_many


@triton.jit  # type: ignore[untyped-decorator]
def _find_digits(numbers: tl.tensor, need: tl.tensor, count: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the first digits of the bound, and the weight of the tokens whose digits are above these.

    The bound is the largest key at which the tokens from it upwards weigh `need`.
    """
    digits = tl.zeros((), tl.int64)
    above = tl.zeros((), tl.int64)
    if count > 0:
        before = numbers + BOUNDS + (count - 1) * 2
        values = tl.arange(0, RADIX)
        weights = tl.load(numbers + VALUES + (count - 1) * RADIX + values)
        above = tl.load(before + 1)
        upwards = above + tl.sum(weights, 0) - tl.cumsum(weights, 0) + weights
        value = tl.sum((upwards >= need).to(tl.int64), 0) - 1
        digits = tl.load(before) * RADIX + value
        above += tl.sum(tl.where(values > value, weights, 0), 0)
    return digits, above


@triton.jit  # type: ignore[untyped-decorator]
def _weigh_values(key: tl.tensor, weights: tl.tensor, digits: tl.tensor, count: tl.tensor) -> tl.tensor:
    """Return the weight of each value of the next digit, of tokens that have the bound's first digits."""
    shift = (NUM_DIGITS - 1 - count) * DIGIT_BITS
    is_within = (weights > 0) & ((key >> (shift + DIGIT_BITS)) == digits)
    value = tl.where(is_within, (key >> shift) & (RADIX - 1), -1).to(tl.int32)
    lowest = tl.min(tl.where(is_within, value, RADIX), 0)
    values = tl.arange(0, RADIX)
    found = tl.zeros((RADIX,), tl.int64)
    # Most chunks have few values of most digits.
    for one in range(lowest, tl.max(value, 0) + 1):
        found = tl.where(values == one, tl.sum(tl.where(value == one, weights, 0), 0), found)
    return found


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _narrow_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    fixed_ptr: tl.tensor,
    masks_ptr: tl.tensor,
    found_ptr: tl.tensor,
    logits_stride: tl.tensor,
    entries_stride: tl.tensor,
    vocabulary: tl.tensor,
    count: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr,  # noqa: N803
    ROOM: tl.constexpr,  # noqa: N803
) -> None:
    """Find so many digits of a flat row's bound, and add up the chunk's weights for the next digit.

    When there is no next digit, store the chunk's weight above the bound and its number of tokens at it.
    """
    chunk, num_chunks = tl.program_id(0), tl.num_programs(0)
    number = tl.program_id(1).to(tl.int64)
    line = table_ptr + number * COLUMNS
    found = open_found(found_ptr, number, num_chunks)
    numbers = found + num_chunks * PLANES
    if is_flat(line, numbers, vocabulary, ROOM):
        peak, _first, fault = find_peak(found, num_chunks, CHUNKS)
        if fault == 0:
            total = tl.sum(load_plane(found, SUMS, num_chunks, CHUNKS), 0)
            need = tl.maximum(fraction(total, tl.load(line + SHARE)), 1)
            digits, above = _find_digits(numbers, need, count)
            if chunk == 0:
                tl.store(numbers + BOUNDS + count * 2, digits)
                tl.store(numbers + BOUNDS + count * 2 + 1, above)
            row = open_row(
                number, line, logits_ptr, entries_ptr, marks_ptr, fixed_ptr, masks_ptr,
                logits_stride, entries_stride, vocabulary,
            )  # fmt: skip
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            _x, z = read_logits(row, ids)
            inverse, least = float_of(line + INVERSE), tl.load(line + LEAST)
            weights = tl.where(ids < vocabulary, weigh(z, peak, inverse, least), 0)
            key = to_digits(z)
            if count < NUM_DIGITS:
                mine = _weigh_values(key, weights, digits, count)
                values = numbers + VALUES + count * RADIX + tl.arange(0, RADIX)
                tl.atomic_add(values, mine, mask=mine > 0, sem="relaxed")
            else:
                place = found + chunk
                tl.store(place + num_chunks * ABOVE, tl.sum(tl.where(key > digits, weights, 0), 0))
                is_tie = (ids < vocabulary) & (key == digits)
                tl.store(place + num_chunks * TIES, tl.sum(is_tie.to(tl.int32), 0).to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def share_bound(  # noqa: PLR0917
    found: tl.tensor,
    line: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    num_chunks: tl.tensor,
    CHUNKS: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return a flat row's bound, the kept weight of each chunk, and the kept ties from each chunk onwards."""
    bound_ptr = found + num_chunks * PLANES + BOUNDS + 2 * NUM_DIGITS
    bound, above = tl.load(bound_ptr), tl.load(bound_ptr + 1)
    need = tl.maximum(fraction(total, tl.load(line + SHARE)), 1)
    each = weigh(from_digits(bound), peak, float_of(line + INVERSE), tl.load(line + LEAST))
    num_ties = (need - above + each - 1) // each
    ties = load_plane(found, TIES, num_chunks, CHUNKS)
    left = tl.maximum(num_ties - tl.cumsum(ties, 0) + ties, 0)
    sums = load_plane(found, ABOVE, num_chunks, CHUNKS) + tl.minimum(left, ties) * each
    return bound, sums, left
