"""Sampling for GPUs: one program a row, in a few passes over the vocabulary and without a sort (README.md).

Floats are only changed by single operations, as in the definition: `enable_fp_fusion` is off in each launch.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.columns import (
    NOT_FINITE,
    NOTHING_ALLOWED,
    PARAMETERS,
    WHOLE,
    Draws,
    Sampled,
)
from millrace_kernels.sampling.reference import SERIES
from millrace_kernels.transfer import upload_all

BLOCK_TOKENS = 4096
"""Read at a time."""
BLOCK_CANDIDATES = 512
"""Read at a time, each compared with all bounds of a pass."""
BOUNDS = 16
"""Tried in a pass: eight passes find one of 2^32 numbers."""
COUNTED = 1024
"""Generated tokens that a program counts."""
WARPS = 16
# Columns of the table that a launch reads, and numbers that Triton's functions use: as it wants them.
# The first columns are in the order of PARAMETERS.
COLUMNS: tl.constexpr = tl.constexpr(13)
INVERSE: tl.constexpr = tl.constexpr(0)
FREQUENCY: tl.constexpr = tl.constexpr(1)
PRESENCE: tl.constexpr = tl.constexpr(2)
TOP_K: tl.constexpr = tl.constexpr(3)
SHARE: tl.constexpr = tl.constexpr(4)
SEED: tl.constexpr = tl.constexpr(5)
LEAST: tl.constexpr = tl.constexpr(6)
SLOT: tl.constexpr = tl.constexpr(7)
NUM_PROMPT: tl.constexpr = tl.constexpr(8)
POSITION: tl.constexpr = tl.constexpr(9)
MASK: tl.constexpr = tl.constexpr(10)
COUNTS: tl.constexpr = tl.constexpr(11)
CUT: tl.constexpr = tl.constexpr(12)
FOUND: tl.constexpr = tl.constexpr(4)
"""Columns of what the first kernel leaves for the second: candidates, weight of all, peak."""
BUCKETS: tl.constexpr = tl.constexpr(1024)
BUCKETS_OF_TWO: tl.constexpr = tl.constexpr(32)
"""Buckets in which a weight halves."""
ROUNDER: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 · 2^23
UNITS: tl.constexpr = tl.constexpr(8388608.0)  # 2^23: from here on a float32 is a whole number
WHOLE_SHARE: tl.constexpr = tl.constexpr(WHOLE)
NO_KEY: tl.constexpr = tl.constexpr(-(1 << 31))
"""Below the key of every float."""
BAD: tl.constexpr = tl.constexpr(NOT_FINITE)
EMPTY: tl.constexpr = tl.constexpr(NOTHING_ALLOWED)
C1: tl.constexpr = tl.constexpr(SERIES[5])
C2: tl.constexpr = tl.constexpr(SERIES[4])
C3: tl.constexpr = tl.constexpr(SERIES[3])
C4: tl.constexpr = tl.constexpr(SERIES[2])
C5: tl.constexpr = tl.constexpr(SERIES[1])
C6: tl.constexpr = tl.constexpr(SERIES[0])


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _count_kernel(  # noqa: PLR0917
    table_ptr: tl.tensor,
    known_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    known_stride: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    place = tl.program_id(0).to(tl.int64)
    line = table_ptr + tl.load(rows_ptr + place) * COLUMNS
    known = known_ptr + tl.load(line + SLOT) * known_stride
    at = tl.load(line + NUM_PROMPT) + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_generated = at < tl.load(line + POSITION)
    token = tl.load(known + at, mask=is_generated, other=0)
    tl.atomic_add(counts_ptr + place * vocabulary + token, 1, mask=is_generated)


@triton.jit  # type: ignore[untyped-decorator]
def _read(row: tl.tuple, ids: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the tokens' logits, and what penalties and the mask make of them: -infinity beyond the end."""
    logits_ptr, counts_ptr, masks_ptr, frequency, presence, is_penalised, is_masked, vocabulary = row
    is_token = ids < vocabulary
    x = tl.load(logits_ptr + ids, mask=is_token, other=float("-inf"))
    z = x
    if is_penalised:
        count = tl.load(counts_ptr + ids, mask=is_token, other=0)
        z = tl.where(count > 0, x - (count.to(tl.float32) * frequency + presence), x)
    if is_masked:
        word = tl.load(masks_ptr + ids // 32, mask=is_token, other=0)
        z = tl.where(((word >> (ids % 32)) & 1) != 0, z, float("-inf"))
    # The two zeros are one number.
    return x, tl.where(z == 0.0, 0.0, z)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(z: tl.tensor, peak: tl.tensor, inverse: tl.tensor, least: tl.tensor) -> tl.tensor:
    """Return the int64 weights of README.md's steps 5 and 6."""
    y = tl.maximum((z - peak) * inverse, -32.0)
    n = (y + ROUNDER) - ROUNDER
    f = y - n
    p = f * C6
    p = (p + C5) * f
    p = (p + C4) * f
    p = (p + C3) * f
    p = (p + C2) * f
    p = (p + C1) * f
    p = p + 1.0
    scale = ((n.to(tl.int32) + 157) << 23).to(tl.float32, bitcast=True)
    scaled = p * scale
    whole = tl.where(scaled < UNITS, (scaled + UNITS) - UNITS, scaled).to(tl.int64)
    return tl.where(whole >= least, whole, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _key(z: tl.tensor) -> tl.tensor:
    """Return int32 numbers in the order of the floats."""
    bits = z.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit  # type: ignore[untyped-decorator]
def _of_key(key: tl.tensor) -> tl.tensor:
    """Return the float of a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _mix(x: tl.tensor) -> tl.tensor:
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _random_bits(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Return 32 random bits as int64, as `randomness.random_bits`."""
    mixed = _mix(seed.to(tl.uint64, bitcast=True)) + position.to(tl.uint64) * 0x9E3779B97F4A7C15
    return (_mix(mixed) >> 32).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def _fraction(total: tl.tensor, part: tl.tensor) -> tl.tensor:
    """Return floor(total · part / 2^32), as the reference does."""
    return ((total >> 31) * part + (((total & 0x7FFFFFFF) * part) >> 31)) >> 1


@triton.jit  # type: ignore[untyped-decorator]
def _float_of(line: tl.tensor) -> tl.tensor:
    """Return the float32 whose bits a column has."""
    return tl.load(line).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _bucket_of(z: tl.tensor, peak: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Return each token's bucket: the larger, the less it weighs."""
    y = tl.maximum((z - peak) * inverse, -32.0)
    return tl.minimum((y * -1.0 * BUCKETS_OF_TWO).to(tl.int32), BUCKETS - 1)


@triton.jit  # type: ignore[untyped-decorator]
def _last_bucket(
    histogram: tl.tensor, total: tl.tensor, top_k: tl.tensor, share: tl.tensor, is_top_k: tl.tensor
) -> tl.tensor:
    """Return a bucket behind which no token is kept."""
    counts = histogram.to(tl.int64)
    if is_top_k:
        # Also where top_p cuts: it takes a part of what all of these weigh.
        last = tl.sum((tl.cumsum(counts, 0) < top_k).to(tl.int32), 0)
    else:
        # A token weighs no more than the begin of its bucket does, but for roundings. What is not behind a
        # bucket weighs the rest.
        begins = tl.arange(0, BUCKETS).to(tl.float32) / BUCKETS_OF_TWO
        heaviest = (tl.exp2(30.0 - begins) * 1.0001).to(tl.int64) + 2
        bounds = counts * heaviest
        rest = total - tl.sum(bounds, 0) + tl.cumsum(bounds, 0)
        last = tl.sum((rest < tl.maximum(_fraction(total, share), 1)).to(tl.int32), 0)
    return tl.minimum(last, BUCKETS - 1)


@triton.jit  # type: ignore[untyped-decorator]
def _find_peak(
    row: tl.tuple,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the largest logit, the first token that has it, and what is wrong with the row: steps 1 to 4."""
    lanes = tl.arange(0, BLOCK)
    peak = tl.full((), float("-inf"), tl.float32)
    first = tl.zeros((), tl.int32)
    num_bad = tl.zeros((), tl.int32)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + lanes
        x, z = _read(row, ids)
        num_bad += tl.sum(((ids < vocabulary) & ~(tl.abs(x) < float("inf"))).to(tl.int32), 0)
        highest = tl.max(z, 0)
        first = tl.where(highest > peak, tl.min(tl.where(z == highest, ids, vocabulary), 0), first)
        peak = tl.maximum(peak, highest)
    fault = tl.where(peak == float("-inf"), EMPTY, 0)
    return peak, first, tl.where((num_bad > 0) | (peak == float("inf")), BAD, fault)


@triton.jit  # type: ignore[untyped-decorator]
def _find_place(
    weight: tl.tensor, running: tl.tensor, target: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return where in a block the sum passes the target, the sum after the block, and whether it does."""
    upto = running + tl.cumsum(weight, 0)
    after = running + tl.sum(weight, 0)
    return tl.sum((upto <= target).to(tl.int32), 0), after, (running <= target) & (after > target)


@triton.jit  # type: ignore[untyped-decorator]
def _draw_from_all(  # noqa: PLR0917
    row: tl.tuple,
    vocabulary: tl.tensor,
    peak: tl.tensor,
    inverse: tl.tensor,
    least: tl.tensor,
    target: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the first token at which the sum of all weights is above the target: step 9."""
    token = tl.zeros((), tl.int32)
    running = tl.zeros((), tl.int64)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        _, z = _read(row, ids)
        weight = tl.where(ids < vocabulary, _weigh(z, peak, inverse, least), 0)
        place, running, is_here = _find_place(weight, running, target)
        token = tl.where(is_here, begin + place, token)
    return token


@triton.jit  # type: ignore[untyped-decorator]
def _leave_candidates(  # noqa: PLR0917
    row: tl.tuple,
    vocabulary: tl.tensor,
    peak: tl.tensor,
    inverse: tl.tensor,
    last: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Store the tokens up to a bucket in the order of their ids, and return how many they are."""
    count = tl.zeros((), tl.int64)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        _, z = _read(row, ids)
        is_kept = (ids < vocabulary) & (_bucket_of(z, peak, inverse) <= last)
        place = count + tl.cumsum(is_kept.to(tl.int64), 0) - 1
        tl.store(values_ptr + place, z, mask=is_kept)
        tl.store(ids_ptr + place, ids, mask=is_kept)
        count += tl.sum(is_kept.to(tl.int64), 0)
    return count


@triton.jit  # type: ignore[untyped-decorator]
def _sample_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    table_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    masks_ptr: tl.tensor,
    found_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    known_ptr: tl.tensor,
    sampled_ptr: tl.tensor,
    logits_stride: tl.tensor,
    known_stride: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Draw for rows that neither top_k nor top_p cuts; leave the candidates of the others.

    A row that has no slot draws nothing.
    """
    number = tl.program_id(0).to(tl.int64)
    line = table_ptr + number * COLUMNS
    slot = tl.load(line + SLOT)
    if slot >= 0:
        inverse = _float_of(line + INVERSE)
        least = tl.load(line + LEAST)
        position = tl.load(line + POSITION)
        masks_row = tl.load(line + MASK)
        counts_row = tl.load(line + COUNTS)
        row = (
            logits_ptr + number * logits_stride,
            counts_ptr + counts_row * vocabulary,
            masks_ptr + masks_row * ((vocabulary + 31) // 32),
            _float_of(line + FREQUENCY),
            _float_of(line + PRESENCE),
            counts_row >= 0,
            masks_row >= 0,
            vocabulary,
        )
        peak, first, fault = _find_peak(row, vocabulary, BLOCK)
        token = tl.where(fault == 0, first, 0)
        cut_row = tl.load(line + CUT)
        num_candidates = tl.zeros((), tl.int64)

        if (fault == 0) & (inverse > 0.0):
            # Steps 5 and 6: the weight of all, and how many tokens weigh how little.
            weighed = tl.zeros((BLOCK,), tl.int64)
            histogram = tl.zeros((BUCKETS,), tl.int32)
            for begin in range(0, vocabulary, BLOCK):
                ids = begin + tl.arange(0, BLOCK)
                _, z = _read(row, ids)
                weighed += tl.where(ids < vocabulary, _weigh(z, peak, inverse, least), 0)
                if cut_row >= 0:
                    histogram += tl.histogram(_bucket_of(z, peak, inverse), BUCKETS, mask=ids < vocabulary)
            total = tl.sum(weighed, 0)
            if cut_row < 0:
                target = _fraction(total, _random_bits(tl.load(line + SEED), position))
                token = _draw_from_all(row, vocabulary, peak, inverse, least, target, BLOCK)
            else:
                top_k = tl.load(line + TOP_K)
                is_top_k = (top_k > 0) & (top_k < vocabulary)
                last = _last_bucket(histogram, total, top_k, tl.load(line + SHARE), is_top_k)
                room = cut_row * vocabulary
                num_candidates = _leave_candidates(
                    row, vocabulary, peak, inverse, last, values_ptr + room, ids_ptr + room, BLOCK
                )
                tl.store(found_ptr + cut_row * FOUND + 1, total)
                tl.store(found_ptr + cut_row * FOUND + 2, peak.to(tl.int32, bitcast=True).to(tl.int64))
        if cut_row >= 0:
            tl.store(found_ptr + cut_row * FOUND, num_candidates)
        tl.store(known_ptr + slot * known_stride + position, token.to(tl.int64))
        tl.store(sampled_ptr + number, token.to(tl.int64))
        tl.store(sampled_ptr + tl.num_programs(0) + number, fault.to(tl.int64))


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
    """Return the largest key from which on tokens reach what is wanted, and what those above it reach.

    They reach their number or their weight. From `low` on they reach enough, and from `high` on nothing.
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
                each = tl.where(at < count, _weigh(z, peak, inverse, least), 0)
            is_above = _key(z).to(tl.int64)[:, None] >= tried[None, :]
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
        is_above = (at < count) & (_key(z) > bound)
        total += tl.sum(tl.where(is_above, _weigh(z, peak, inverse, least), 0), 0)
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
    """Return the place of the first kept token at which their sum is above the target: step 9.

    Kept are those whose key is above the bound, and the first `num_ties` of those that have it.
    """
    found = tl.zeros((), tl.int32)
    running = tl.zeros((), tl.int64)
    ties = tl.zeros((), tl.int64)
    for begin in range(0, count, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        z = tl.load(values_ptr + at, mask=at < count, other=float("-inf"))
        key = _key(z)
        is_tie = (at < count) & (key == bound)
        rank = ties + tl.cumsum(is_tie.to(tl.int64), 0)
        is_kept = (at < count) & ((key > bound) | (is_tie & (rank <= num_ties)))
        weight = tl.where(is_kept, _weigh(z, peak, inverse, least), 0)
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
    """Draw among a row's candidates: steps 7 to 9."""
    cut_row = tl.program_id(0).to(tl.int64)
    found_ptr += cut_row * FOUND
    count = tl.load(found_ptr).to(tl.int32)
    if count > 0:
        total = tl.load(found_ptr + 1)
        peak = tl.load(found_ptr + 2).to(tl.int32).to(tl.float32, bitcast=True)
        number = tl.load(rows_ptr + cut_row)
        line = table_ptr + number * COLUMNS
        inverse = _float_of(line + INVERSE)
        top_k = tl.load(line + TOP_K)
        share = tl.load(line + SHARE)
        least = tl.load(line + LEAST)
        mine_ptr = values_ptr + cut_row * vocabulary
        is_top_k = (top_k > 0) & (top_k < vocabulary)
        bound = tl.zeros((), tl.int64) + NO_KEY
        num_ties = tl.zeros((), tl.int64)
        end = _key(peak).to(tl.int64) + 1
        if is_top_k:
            bound, above = _search(
                mine_ptr, count, bound, end, top_k, peak, inverse, least, BLOCK, TRIED, True
            )
            num_ties = top_k - above
            each = _weigh(_of_key(bound.to(tl.int32)), peak, inverse, least)
            total = num_ties * each + _weigh_above(mine_ptr, count, bound, peak, inverse, least, BLOCK)
        if share < WHOLE_SHARE:
            need = tl.maximum(_fraction(total, share), 1)
            low, above = _search(mine_ptr, count, bound, end, need, peak, inverse, least, BLOCK, TRIED, False)
            each = tl.maximum(_weigh(_of_key(low.to(tl.int32)), peak, inverse, least), 1)
            wanted = (need - above + each - 1) // each
            num_ties = tl.where(is_top_k & (low == bound), tl.minimum(num_ties, wanted), wanted)
            bound = low
            total = above + num_ties * each
        position = tl.load(line + POSITION)
        target = _fraction(total, _random_bits(tl.load(line + SEED), position))
        place = _draw_from_kept(mine_ptr, count, bound, num_ties, peak, inverse, least, target, BLOCK)
        token = tl.load(ids_ptr + cut_row * vocabulary + place).to(tl.int64)
        tl.store(known_ptr + tl.load(line + SLOT) * known_stride + position, token)
        tl.store(sampled_ptr + number, token)


def sample(logits: Tensor, draws: Draws, known_tokens: Tensor, masks: Tensor | None = None) -> Sampled:
    """Launch the kernels; shapes as in `sample_reference`. A row of logits must be contiguous, and masks.

    The tokens become known ones too, each at its position.
    """
    draws.check_masks(masks)
    device, (num_rows, vocabulary) = logits.device, logits.shape
    penalised, cut = _find_penalised(draws), _find_cut(draws, vocabulary)
    table = np.empty((num_rows, COLUMNS.value), dtype=np.int64)
    lay_out(draws, table)
    table[penalised, COUNTS.value], table[cut, CUT.value] = np.arange(len(penalised)), np.arange(len(cut))
    columns, penalised_rows, cut_rows = upload_all((table.reshape(-1), penalised, cut), device)
    counts = _count(draws, columns, penalised, penalised_rows, known_tokens, vocabulary)
    scratch = _Scratch.allocate(len(cut), vocabulary, device)
    sampled = torch.empty((2, num_rows), dtype=torch.int64, device=device)
    _launch(logits, columns, counts, masks, scratch, known_tokens, sampled)
    if len(cut):
        _cut_kernel[(len(cut),)](
            columns, cut_rows, *scratch, known_tokens, sampled, known_tokens.stride(0), vocabulary,
            BLOCK=BLOCK_CANDIDATES, TRIED=BOUNDS, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return Sampled(sampled)


def sample_plain(logits: Tensor, table: Tensor, known_tokens: Tensor, sampled: Tensor) -> None:
    """Draw plainly, as a table on the device says: with nothing from the host, so that it can be recorded.

    table int64 [rows, COLUMNS] is as `lay_out` makes it. A row whose slot is negative draws nothing.
    `sampled` int64 [2, rows] becomes what Sampled has.
    """
    nothing = torch.empty(1, dtype=torch.int32, device=logits.device)
    scratch = _Scratch.allocate(0, logits.shape[1], logits.device)
    _launch(logits, table, nothing, None, scratch, known_tokens, sampled)


class _Scratch(NamedTuple):
    """What the first kernel leaves for the second, by cut row."""

    found: Tensor
    values: Tensor
    ids: Tensor

    @classmethod
    def allocate(cls, num_cut: int, vocabulary: int, device: torch.device) -> "_Scratch":
        """Return memory. Without cut rows there is a little: a launch wants an address."""
        room = max(1, num_cut * vocabulary)
        return cls(
            torch.empty((max(1, num_cut), FOUND.value), dtype=torch.int64, device=device),
            torch.empty(room, device=device),
            torch.empty(room, dtype=torch.int32, device=device),
        )


def _launch(  # noqa: PLR0917
    logits: Tensor,
    table: Tensor,
    counts: Tensor,
    masks: Tensor | None,
    scratch: _Scratch,
    known_tokens: Tensor,
    sampled: Tensor,
) -> None:
    _sample_kernel[(logits.shape[0],)](
        logits, table, counts, counts if masks is None else masks, *scratch, known_tokens, sampled,
        logits.stride(0), known_tokens.stride(0), logits.shape[1],
        BLOCK=BLOCK_TOKENS, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def _count(  # noqa: PLR0917
    draws: Draws,
    columns: Tensor,
    penalised: NDArray[np.int64],
    penalised_rows: Tensor,
    known_tokens: Tensor,
    vocabulary: int,
) -> Tensor:
    """Return int32 [penalised rows, vocabulary]: how often each token was generated."""
    if not len(penalised):
        return torch.empty(1, dtype=torch.int32, device=columns.device)
    counts = torch.zeros((len(penalised), vocabulary), dtype=torch.int32, device=columns.device)
    longest = int((draws.position - draws.num_prompt)[penalised].max())
    _count_kernel[(len(penalised), triton.cdiv(longest, COUNTED))](
        columns, known_tokens, counts, penalised_rows, known_tokens.stride(0), vocabulary, BLOCK=COUNTED
    )
    return counts


def _find_penalised(draws: Draws) -> NDArray[np.int64]:
    """Return the rows in which a generated token weighs less."""
    is_wanted = (draws.parameters["frequency"] != 0) | (draws.parameters["presence"] != 0)
    return np.flatnonzero(is_wanted & (draws.position > draws.num_prompt))


def _find_cut(draws: Draws, vocabulary: int) -> NDArray[np.int64]:
    """Return the rows that draw at random, and that top_k or top_p cuts."""
    parameters = draws.parameters
    is_top_k = (parameters["top_k"] > 0) & (parameters["top_k"] < vocabulary)
    return np.flatnonzero(
        (parameters["inverse_temperature"] > 0) & (is_top_k | (parameters["share"] < WHOLE))
    )


def lay_out(draws: Draws, table: NDArray[np.int64]) -> None:
    """Write the table that the kernels read, int64 [rows, COLUMNS], floats by their bits.

    It says of no row that it is penalised or cut.
    """
    halves = draws.parameters.view(np.int32).reshape(-1, 2 * PARAMETERS.itemsize // 8)
    table[:, : TOP_K.value + 1] = halves[:, : TOP_K.value + 1]
    table[:, SHARE.value : LEAST.value + 1] = draws.parameters.view(np.int64).reshape(len(halves), -1)[:, 2:]
    table[:, SLOT.value : MASK.value + 1] = draws.places
    table[:, COUNTS.value :] = -1
