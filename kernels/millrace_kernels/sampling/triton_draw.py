"""Steps 1 to 8 of README.md, and the draw of rows without a cut. Other rows store candidates."""

import triton
import triton.language as tl

from millrace_kernels.sampling.triton_table import (
    BIASES,
    COLUMNS,
    COUNTS,
    CUT,
    FOUND,
    FREQUENCY,
    HAS_FIXED_MASK,
    INVERSE,
    LEAST,
    MASK,
    POSITION,
    PRESENCE,
    REPETITION,
    SEED,
    SHARE,
    SLOT,
    TOP_K,
)
from millrace_kernels.sampling.triton_weights import (
    BAD,
    BUCKETS,
    EMPTY,
    bucket_of,
    float_of,
    fraction,
    last_bucket,
    random_bits,
    read_logits,
    weigh,
)


@triton.jit  # type: ignore[untyped-decorator]
def _find_peak(
    row: tl.tuple,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the largest logit, its first token, and the row's fault: steps 1 to 6."""
    lanes = tl.arange(0, BLOCK)
    peak = tl.full((), float("-inf"), tl.float32)
    first = tl.zeros((), tl.int32)
    num_bad = tl.zeros((), tl.int32)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + lanes
        x, z = read_logits(row, ids)
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
    """Return the index at which the sum passes the target, the sum after the block, and whether it does."""
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
    """Return the first token at which the sum of all weights is above the target: step 11."""
    token = tl.zeros((), tl.int32)
    running = tl.zeros((), tl.int64)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        _, z = read_logits(row, ids)
        weight = tl.where(ids < vocabulary, weigh(z, peak, inverse, least), 0)
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
    """Store the tokens up to a bucket in the order of their ids, and return their number."""
    count = tl.zeros((), tl.int64)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        _, z = read_logits(row, ids)
        is_kept = (ids < vocabulary) & (bucket_of(z, peak, inverse) <= last)
        place = count + tl.cumsum(is_kept.to(tl.int64), 0) - 1
        tl.store(values_ptr + place, z, mask=is_kept)
        tl.store(ids_ptr + place, ids, mask=is_kept)
        count += tl.sum(is_kept.to(tl.int64), 0)
    return count


@triton.jit  # type: ignore[untyped-decorator]
def _sample_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    table_ptr: tl.tensor,
    biases_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    fixed_ptr: tl.tensor,
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
    """Draw for rows that neither top_k nor top_p cuts; store the candidates of the others.

    A row without a slot draws nothing.
    """
    number = tl.program_id(0).to(tl.int64)
    line = table_ptr + number * COLUMNS
    slot = tl.load(line + SLOT)
    if slot >= 0:
        inverse = float_of(line + INVERSE)
        least = tl.load(line + LEAST)
        position = tl.load(line + POSITION)
        biases_row = tl.load(line + BIASES)
        counts_row = tl.load(line + COUNTS)
        masks_row = tl.load(line + MASK)
        num_words = (vocabulary + 31) // 32
        row = (
            logits_ptr + number * logits_stride,
            biases_ptr + biases_row * vocabulary,
            counts_ptr + counts_row * vocabulary,
            fixed_ptr + slot * num_words,
            masks_ptr + masks_row * num_words,
            (float_of(line + REPETITION), float_of(line + FREQUENCY), float_of(line + PRESENCE)),
            (biases_row >= 0, counts_row >= 0, tl.load(line + HAS_FIXED_MASK) > 0, masks_row >= 0),
            vocabulary,
        )
        peak, first, fault = _find_peak(row, vocabulary, BLOCK)
        token = tl.where(fault == 0, first, 0)
        cut_row = tl.load(line + CUT)
        num_candidates = tl.zeros((), tl.int64)

        if (fault == 0) & (inverse > 0.0):
            # Steps 7 and 8: the sum of all weights, and the number of tokens in each bucket.
            weighed = tl.zeros((BLOCK,), tl.int64)
            histogram = tl.zeros((BUCKETS,), tl.int32)
            for begin in range(0, vocabulary, BLOCK):
                ids = begin + tl.arange(0, BLOCK)
                _, z = read_logits(row, ids)
                weighed += tl.where(ids < vocabulary, weigh(z, peak, inverse, least), 0)
                if cut_row >= 0:
                    histogram += tl.histogram(bucket_of(z, peak, inverse), BUCKETS, mask=ids < vocabulary)
            total = tl.sum(weighed, 0)
            if cut_row < 0:
                target = fraction(total, random_bits(tl.load(line + SEED), position))
                token = _draw_from_all(row, vocabulary, peak, inverse, least, target, BLOCK)
            else:
                top_k = tl.load(line + TOP_K)
                is_top_k = (top_k > 0) & (top_k < vocabulary)
                last = last_bucket(histogram, total, top_k, tl.load(line + SHARE), is_top_k)
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
