"""The last launch: a program for each row draws from the results of its chunks."""

import triton
import triton.language as tl

from millrace_kernels.sampling.gpu.triton_candidates import draw_from_candidates, find_place
from millrace_kernels.sampling.gpu.triton_chunks import (
    LAST_BUCKET,
    NUM_CANDIDATES,
    PLANES,
    SUMS,
    find_peak,
    load_plane,
    open_found,
)
from millrace_kernels.sampling.gpu.triton_narrow import is_flat, share_bound
from millrace_kernels.sampling.gpu.triton_penalties import open_row, read_logits
from millrace_kernels.sampling.gpu.triton_random import random_bits
from millrace_kernels.sampling.gpu.triton_table import (
    COLUMNS,
    INVERSE,
    LEAST,
    POSITION,
    SEED,
    SLOT,
    float_of,
    is_cut,
)
from millrace_kernels.sampling.gpu.triton_weights import fraction, to_digits, weigh


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _draw_from_chunk(  # noqa: PLR0917
    row: tl.tuple,
    line: tl.tensor,
    peak: tl.tensor,
    bound: tl.tensor,
    sums: tl.tensor,
    left: tl.tensor,
    bits: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the first kept token at which their sum is above the target: step 11.

    Tokens with a key above the bound are kept, and from each chunk onwards the first `left` of those with a
    key at the bound. `sums` are the kept weights of the chunks. Of all logits it reads only those of the
    chunk that has this token.
    """
    target = fraction(tl.sum(sums, 0), bits)
    chunk, _, _ = find_place(sums, tl.zeros((), tl.int64), target)
    chunks = tl.arange(0, CHUNKS)
    before = tl.sum(tl.where(chunks < chunk, sums, 0), 0)
    num_ties = tl.sum(tl.where(chunks == chunk, left, 0), 0)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    _, z = read_logits(row, ids)
    key = to_digits(z)
    is_tie = key == bound
    is_kept = (key > bound) | (is_tie & (tl.cumsum(is_tie.to(tl.int32), 0) <= num_ties))
    weights = weigh(z, peak, float_of(line + INVERSE), tl.load(line + LEAST))
    place, _, _ = find_place(tl.where((ids < vocabulary) & is_kept, weights, 0), before, target)
    return chunk * CHUNK + place


@triton.jit  # type: ignore[untyped-decorator]
def _draw_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    fixed_ptr: tl.tensor,
    masks_ptr: tl.tensor,
    found_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    known_ptr: tl.tensor,
    sampled_ptr: tl.tensor,
    logits_stride: tl.tensor,
    entries_stride: tl.tensor,
    known_stride: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr,  # noqa: N803
    ROOM: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    TRIED: tl.constexpr,  # noqa: N803
) -> None:
    """Draw a row's token, and store it among the known ones. A row without a slot draws nothing."""
    number = tl.program_id(0).to(tl.int64)
    line = table_ptr + number * COLUMNS
    slot = tl.load(line + SLOT)
    if slot >= 0:
        num_chunks = (vocabulary + CHUNK - 1) // CHUNK
        found = open_found(found_ptr, number, num_chunks)
        peak, first, fault = find_peak(found, num_chunks, CHUNKS)
        token = tl.where(fault == 0, first, 0)
        inverse, position = float_of(line + INVERSE), tl.load(line + POSITION)
        if (fault == 0) & (inverse > 0.0):
            row = open_row(
                number, line, logits_ptr, entries_ptr, marks_ptr, fixed_ptr, masks_ptr,
                logits_stride, entries_stride, vocabulary,
            )  # fmt: skip
            bits = random_bits(tl.load(line + SEED), position)
            sums = load_plane(found, SUMS, num_chunks, CHUNKS)
            total = tl.sum(sums, 0)
            numbers = found + num_chunks * PLANES
            has_bound = is_flat(line, numbers, vocabulary, ROOM)
            if is_cut(line, vocabulary) & ~has_bound:
                count = tl.load(numbers + NUM_CANDIDATES).to(tl.int32)
                last = tl.load(numbers + LAST_BUCKET).to(tl.int32)
                is_stored = count <= ROOM
                end = tl.where(is_stored, count, vocabulary)
                mine_ptr = values_ptr + number * ROOM
                candidates = (mine_ptr, is_stored, end, last, peak, inverse, tl.load(line + LEAST))
                place = draw_from_candidates(
                    candidates, row, line, count, total, bits, vocabulary, BLOCK, TRIED
                )
                token = tl.load(ids_ptr + number * ROOM + place, mask=is_stored, other=0)
                token = tl.where(is_stored, token, place)
            else:
                bound = tl.full((), -1, tl.int64)  # below every key
                left = tl.zeros((CHUNKS,), tl.int64)
                if has_bound:
                    bound, sums, left = share_bound(found, line, peak, total, num_chunks, CHUNKS)
                token = _draw_from_chunk(row, line, peak, bound, sums, left, bits, vocabulary, CHUNK, CHUNKS)
        tl.store(known_ptr + slot * known_stride + position, token.to(tl.int64))
        tl.store(sampled_ptr + number, token.to(tl.int64))
        tl.store(sampled_ptr + tl.num_programs(0) + number, fault.to(tl.int64))
