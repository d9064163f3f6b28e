"""The last launch: a program for each row draws from what the programs of its chunks found."""

import triton
import triton.language as tl

from millrace_kernels.sampling.triton_candidates import draw_from_candidates, find_place
from millrace_kernels.sampling.triton_chunks import (
    LAST_BUCKET,
    NUM_CANDIDATES,
    PLANES,
    SUMS,
    find_peak,
    load_plane,
    open_found,
)
from millrace_kernels.sampling.triton_row import open_row, read_logits
from millrace_kernels.sampling.triton_table import (
    COLUMNS,
    INVERSE,
    LEAST,
    POSITION,
    SEED,
    SLOT,
    float_of,
    is_cut,
)
from millrace_kernels.sampling.triton_weights import fraction, random_bits, weigh


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _draw_from_chunk(  # noqa: PLR0917
    row: tl.tuple,
    sums: tl.tensor,
    peak: tl.tensor,
    inverse: tl.tensor,
    least: tl.tensor,
    bits: tl.tensor,
    vocabulary: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the first token at which the sum of all weights is above the target: step 11.

    Of all logits it reads only those of the chunk that has this token.
    """
    target = fraction(tl.sum(sums, 0), bits)
    chunk, _, _ = find_place(sums, tl.zeros((), tl.int64), target)
    before = tl.sum(tl.where(tl.arange(0, CHUNKS) < chunk, sums, 0), 0)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    _, z = read_logits(row, ids)
    weights = tl.where(ids < vocabulary, weigh(z, peak, inverse, least), 0)
    place, _, _ = find_place(weights, before, target)
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
            least = tl.load(line + LEAST)
            bits = random_bits(tl.load(line + SEED), position)
            sums = load_plane(found, SUMS, num_chunks, CHUNKS)
            if is_cut(line, vocabulary):
                numbers = found + num_chunks * PLANES
                count = tl.load(numbers + NUM_CANDIDATES).to(tl.int32)
                last = tl.load(numbers + LAST_BUCKET).to(tl.int32)
                is_stored = count <= ROOM
                end = tl.where(is_stored, count, vocabulary)
                mine_ptr = values_ptr + number * ROOM
                candidates = (mine_ptr, is_stored, end, last, peak, inverse, least)
                total = tl.sum(sums, 0)
                place = draw_from_candidates(candidates, row, line, total, bits, vocabulary, BLOCK, TRIED)
                token = tl.load(ids_ptr + number * ROOM + place, mask=is_stored, other=0)
                token = tl.where(is_stored, token, place)
            else:
                token = _draw_from_chunk(row, sums, peak, inverse, least, bits, vocabulary, CHUNK, CHUNKS)
        tl.store(known_ptr + slot * known_stride + position, token.to(tl.int64))
        tl.store(sampled_ptr + number, token.to(tl.int64))
        tl.store(sampled_ptr + tl.num_programs(0) + number, fault.to(tl.int64))
