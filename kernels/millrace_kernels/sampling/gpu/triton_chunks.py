"""Steps 1 to 8 of README.md, by a program for each chunk of each row. A later launch reads their results.

The launches are the only barriers. Programs of one launch write to one place only by additions of integers.
"""

import triton
import triton.language as tl

from millrace_kernels.sampling.gpu.triton_penalties import open_row, read_logits
from millrace_kernels.sampling.gpu.triton_table import (
    COLUMNS,
    INVERSE,
    LEAST,
    SHARE,
    SLOT,
    TOP_K,
    float_of,
    is_cut,
    is_top_k,
)
from millrace_kernels.sampling.gpu.triton_weights import (
    BAD,
    BUCKETS,
    EMPTY,
    LAST_ID,
    NUM_DIGITS,
    RADIX,
    bucket_of,
    from_key,
    last_bucket,
    rank_tokens,
    weigh,
)

# The results for a row, in int64: for each chunk its first largest token, its number of logits that are not
# finite, and its sum of weights; then of the whole row its number of candidates and their last bucket.
# The others are of flat rows (triton_narrow.py): of each chunk the weight above the bound and the number of
# tokens at it; of the row the bound's first digits with the weight above these, for each number of digits;
# and the weight of each value of each digit.
RANKS: tl.constexpr = tl.constexpr(0)
FAULTS: tl.constexpr = tl.constexpr(1)
SUMS: tl.constexpr = tl.constexpr(2)
ABOVE: tl.constexpr = tl.constexpr(3)
TIES: tl.constexpr = tl.constexpr(4)
PLANES: tl.constexpr = tl.constexpr(5)
NUM_CANDIDATES: tl.constexpr = tl.constexpr(0)
LAST_BUCKET: tl.constexpr = tl.constexpr(1)
BOUNDS: tl.constexpr = tl.constexpr(2)
VALUES: tl.constexpr = tl.constexpr(BOUNDS.value + 2 * (NUM_DIGITS.value + 1))
NUMBERS: tl.constexpr = tl.constexpr(VALUES.value + NUM_DIGITS.value * RADIX.value)


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def open_found(found_ptr: tl.tensor, number: tl.tensor, num_chunks: tl.tensor) -> tl.tensor:
    """Return where a row's numbers begin."""
    return found_ptr + number * (num_chunks * PLANES + NUMBERS)


@triton.jit  # type: ignore[untyped-decorator]
def open_buckets(buckets_ptr: tl.tensor, number: tl.tensor, num_chunks: tl.tensor) -> tl.tensor:
    """Return where a row's buckets begin: their numbers of tokens; then for each chunk the running ones."""
    return buckets_ptr + number * (1 + num_chunks) * BUCKETS


@triton.jit  # type: ignore[untyped-decorator]
def load_plane(
    found: tl.tensor,
    plane: tl.constexpr,
    num_chunks: tl.tensor,
    CHUNKS: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return a number of each chunk; 0 of those beyond the last one."""
    chunks = tl.arange(0, CHUNKS)
    return tl.load(found + num_chunks * plane + chunks, mask=chunks < num_chunks, other=0)


@triton.jit  # type: ignore[untyped-decorator]
def find_peak(
    found: tl.tensor,
    num_chunks: tl.tensor,
    CHUNKS: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return a row's largest logit, its first token, and its fault: steps 1 to 6."""
    is_chunk = tl.arange(0, CHUNKS) < num_chunks
    ranks = load_plane(found, RANKS, num_chunks, CHUNKS)
    rank = tl.max(tl.where(is_chunk, ranks, -(1 << 63)), 0)
    peak = from_key((rank >> 32).to(tl.int32))
    first = ((rank & LAST_ID) ^ LAST_ID).to(tl.int32)
    num_bad = tl.sum(load_plane(found, FAULTS, num_chunks, CHUNKS), 0)
    fault = tl.where(peak == float("-inf"), EMPTY, 0)
    return peak, first, tl.where((num_bad > 0) | (peak == float("inf")), BAD, fault)


@triton.jit  # type: ignore[untyped-decorator]
def _peak_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    fixed_ptr: tl.tensor,
    masks_ptr: tl.tensor,
    found_ptr: tl.tensor,
    buckets_ptr: tl.tensor,
    logits_stride: tl.tensor,
    entries_stride: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
) -> None:
    """Find each chunk's first largest logit and its faults, and empty the buckets of rows that are cut."""
    chunk, num_chunks = tl.program_id(0), tl.num_programs(0)
    number = tl.program_id(1).to(tl.int64)
    line = table_ptr + number * COLUMNS
    if tl.load(line + SLOT) >= 0:
        row = open_row(
            number, line, logits_ptr, entries_ptr, marks_ptr, fixed_ptr, masks_ptr,
            logits_stride, entries_stride, vocabulary,
        )  # fmt: skip
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        x, z = read_logits(row, ids)
        is_bad = (ids < vocabulary) & ~(tl.abs(x) < float("inf"))
        found = open_found(found_ptr, number, num_chunks) + chunk
        tl.store(found + num_chunks * RANKS, tl.max(rank_tokens(z, ids), 0))
        tl.store(found + num_chunks * FAULTS, tl.sum(is_bad.to(tl.int32), 0).to(tl.int64))
        if (chunk == 0) & is_cut(line, vocabulary):
            buckets = open_buckets(buckets_ptr, number, num_chunks)
            tl.store(buckets + tl.arange(0, BUCKETS), tl.zeros((BUCKETS,), tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def _weigh_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    fixed_ptr: tl.tensor,
    masks_ptr: tl.tensor,
    found_ptr: tl.tensor,
    buckets_ptr: tl.tensor,
    logits_stride: tl.tensor,
    entries_stride: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr,  # noqa: N803
) -> None:
    """Add up each chunk's weights in rows that draw at random, and fill the buckets: steps 7 and 8."""
    chunk, num_chunks = tl.program_id(0), tl.num_programs(0)
    number = tl.program_id(1).to(tl.int64)
    line = table_ptr + number * COLUMNS
    inverse = float_of(line + INVERSE)
    if (tl.load(line + SLOT) >= 0) & (inverse > 0.0):
        found = open_found(found_ptr, number, num_chunks)
        peak, _first, fault = find_peak(found, num_chunks, CHUNKS)
        if fault == 0:
            row = open_row(
                number, line, logits_ptr, entries_ptr, marks_ptr, fixed_ptr, masks_ptr,
                logits_stride, entries_stride, vocabulary,
            )  # fmt: skip
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            _x, z = read_logits(row, ids)
            weights = tl.where(ids < vocabulary, weigh(z, peak, inverse, tl.load(line + LEAST)), 0)
            tl.store(found + num_chunks * SUMS + chunk, tl.sum(weights, 0))
            if is_cut(line, vocabulary):
                # A token without weight is no candidate: a mask leaves 128,000, and top_k may want them.
                counts = tl.histogram(bucket_of(z, peak, inverse), BUCKETS, mask=weights > 0)
                buckets = open_buckets(buckets_ptr, number, num_chunks) + tl.arange(0, BUCKETS)
                tl.atomic_add(buckets, counts, mask=counts > 0)
                tl.store(buckets + (1 + chunk) * BUCKETS, tl.cumsum(counts, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    fixed_ptr: tl.tensor,
    masks_ptr: tl.tensor,
    found_ptr: tl.tensor,
    buckets_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    logits_stride: tl.tensor,
    entries_stride: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr,  # noqa: N803
    ROOM: tl.constexpr,  # noqa: N803
) -> None:
    """Store the candidates of rows that are cut in the order of their ids, as many as have room.

    Also empty what flat rows add up later.
    """
    chunk, num_chunks = tl.program_id(0), tl.num_programs(0)
    number = tl.program_id(1).to(tl.int64)
    line = table_ptr + number * COLUMNS
    if is_cut(line, vocabulary):
        found = open_found(found_ptr, number, num_chunks)
        peak, _first, fault = find_peak(found, num_chunks, CHUNKS)
        if fault == 0:
            total = tl.sum(load_plane(found, SUMS, num_chunks, CHUNKS), 0)
            buckets = open_buckets(buckets_ptr, number, num_chunks)
            counts = tl.load(buckets + tl.arange(0, BUCKETS))
            top_k, share = tl.load(line + TOP_K), tl.load(line + SHARE)
            last = last_bucket(counts, total, top_k, share, is_top_k(line, vocabulary))
            chunks = tl.arange(0, CHUNKS)
            is_chunk = chunks < num_chunks
            kept = tl.load(buckets + (1 + chunks) * BUCKETS + last, mask=is_chunk, other=0)
            if chunk == 0:
                numbers = found + num_chunks * PLANES
                tl.store(numbers + NUM_CANDIDATES, tl.sum(kept, 0).to(tl.int64))
                tl.store(numbers + LAST_BUCKET, last.to(tl.int64))
                for place in range(NUM_DIGITS):
                    values = numbers + VALUES + place * RADIX + tl.arange(0, RADIX)
                    tl.store(values, tl.zeros((RADIX,), tl.int64))
            begin = tl.sum(tl.where(chunks < chunk, kept, 0), 0)
            if (tl.sum(tl.where(chunks == chunk, kept, 0), 0) > 0) & (begin < ROOM):
                row = open_row(
                    number, line, logits_ptr, entries_ptr, marks_ptr, fixed_ptr, masks_ptr,
                    logits_stride, entries_stride, vocabulary,
                )  # fmt: skip
                ids = chunk * CHUNK + tl.arange(0, CHUNK)
                _x, z = read_logits(row, ids)
                inverse = float_of(line + INVERSE)
                has_weight = (ids < vocabulary) & (weigh(z, peak, inverse, tl.load(line + LEAST)) > 0)
                is_kept = has_weight & (bucket_of(z, peak, inverse) <= last)
                place = begin + tl.cumsum(is_kept.to(tl.int32), 0) - 1
                has_room = is_kept & (place < ROOM)
                tl.store(values_ptr + number * ROOM + place, z, mask=has_room)
                tl.store(ids_ptr + number * ROOM + place, ids, mask=has_room)
