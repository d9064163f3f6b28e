"""Log-probabilities for GPUs: a program for each chunk of each row, then one for each row.

A program finds each of its most likely tokens by a pass over the logits that it holds. Few requests ask for
these, and for few tokens: a sort of the vocabulary would cost more.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.sampling.gpu import triton_shape
from millrace_kernels.sampling.reference import TopLogprobs

MOST_RANKS: tl.constexpr = tl.constexpr(32)
"""Likely tokens, at most."""


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _find_next(  # noqa: PLR0917
    x: tl.tensor, ids: tl.tensor, is_there: tl.tensor, last: tl.tensor, last_id: tl.tensor, beyond: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return the next largest logit, of equal ones the first, and its id: `beyond` if none is left."""
    is_after = is_there & ((x < last) | ((x == last) & (ids > last_id)))
    best = tl.max(tl.where(is_after, x, float("-inf")), 0)
    return best, tl.min(tl.where(is_after & (x == best), ids, beyond), 0)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _rank_logprobs_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    peaks_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    logits_stride: tl.tensor,
    vocabulary: tl.tensor,
    number: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
) -> None:
    """Find each chunk's largest logit, the sum of its exponentials, and its most likely tokens."""
    chunk = tl.program_id(0)
    place = tl.program_id(1).to(tl.int64)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    is_token = ids < vocabulary
    x = tl.load(
        logits_ptr + tl.load(rows_ptr + place) * logits_stride + ids, mask=is_token, other=float("-inf")
    )
    mine = place * tl.num_programs(0) + chunk
    peak = tl.max(x, 0)
    tl.store(peaks_ptr + mine * 2, peak)
    tl.store(peaks_ptr + mine * 2 + 1, tl.sum(tl.exp(x - peak), 0))
    last = tl.full((), float("inf"), tl.float32)
    last_id = tl.full((), -1, tl.int32)
    for rank in range(number):
        last, last_id = _find_next(x, ids, is_token, last, last_id, vocabulary)
        tl.store(values_ptr + mine * MOST_RANKS + rank, last)
        tl.store(ids_ptr + mine * MOST_RANKS + rank, last_id)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _merge_logprobs_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    peaks_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    drawn_ptr: tl.tensor,
    top_values_ptr: tl.tensor,
    top_ids_ptr: tl.tensor,
    logits_stride: tl.tensor,
    vocabulary: tl.tensor,
    number: tl.tensor,
    CHUNK: tl.constexpr,  # noqa: N803
    CHUNKS: tl.constexpr,  # noqa: N803
) -> None:
    """Merge the results of a row's chunks."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    num_chunks = (vocabulary + CHUNK - 1) // CHUNK
    chunks = tl.arange(0, CHUNKS)
    peak_ptr = peaks_ptr + (place * num_chunks + chunks) * 2
    peaks = tl.load(peak_ptr, mask=chunks < num_chunks, other=float("-inf"))
    sums = tl.load(peak_ptr + 1, mask=chunks < num_chunks, other=0.0)
    peak = tl.max(peaks, 0)
    whole = peak + tl.log(tl.sum(sums * tl.exp(peaks - peak), 0))
    token = tl.load(tokens_ptr + row)
    tl.store(drawn_ptr + place, tl.load(logits_ptr + row * logits_stride + token) - whole)

    at = tl.arange(0, CHUNKS * MOST_RANKS)
    is_found = (at < num_chunks * MOST_RANKS) & (at % MOST_RANKS < number)
    mine = place * num_chunks * MOST_RANKS + at
    x = tl.load(values_ptr + mine, mask=is_found, other=float("-inf"))
    ids = tl.load(ids_ptr + mine, mask=is_found, other=0)
    last = tl.full((), float("inf"), tl.float32)
    last_id = tl.full((), -1, tl.int32)
    for rank in range(number):
        last, last_id = _find_next(x, ids, is_found & (ids < vocabulary), last, last_id, vocabulary)
        tl.store(top_ids_ptr + place * number + rank, last_id)
        tl.store(top_values_ptr + place * number + rank, last - whole)


def top_logprobs(logits: Tensor, rows: Tensor, tokens: Tensor, number: int) -> TopLogprobs:
    """Launch the kernels; shapes as in `top_logprobs_reference`, ids int32, equal ones by id.

    Rows of logits must be contiguous. The result of a row with a non-finite logit has no meaning.
    """
    num_rows, vocabulary, width = rows.shape[0], logits.shape[1], min(number, logits.shape[1])
    assert width <= MOST_RANKS.value, f"{width} tokens are more than the {MOST_RANKS.value} that are ranked"
    shape, device = triton_shape.SHAPE, logits.device
    num_chunks = shape.count_chunks(vocabulary)
    peaks = torch.empty((num_rows, num_chunks, 2), device=device)
    values = torch.empty((num_rows, num_chunks, MOST_RANKS.value), device=device)
    ids = torch.empty((num_rows, num_chunks, MOST_RANKS.value), dtype=torch.int32, device=device)
    found = TopLogprobs(
        torch.empty(num_rows, device=device),
        torch.empty((num_rows, width), dtype=torch.int32, device=device),
        torch.empty((num_rows, width), device=device),
    )
    _rank_logprobs_kernel[(num_chunks, num_rows)](
        logits, rows, peaks, values, ids, logits.stride(0), vocabulary, width,
        CHUNK=shape.chunk, num_warps=shape.chunk_warps,
    )  # fmt: skip
    _merge_logprobs_kernel[(num_rows,)](
        logits, rows, peaks, values, ids, tokens, found.drawn, found.values, found.ids,
        logits.stride(0), vocabulary, width,
        CHUNK=shape.chunk, CHUNKS=triton.next_power_of_2(num_chunks), num_warps=shape.chunk_warps,
    )  # fmt: skip
    return found
