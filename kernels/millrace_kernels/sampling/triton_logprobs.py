"""Log-probabilities for GPUs: one program a row, and a pass for each of the most likely tokens.

Few requests ask for them, and for few tokens: a sort of the vocabulary would cost more.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.sampling.logprobs import TopLogprobs

BLOCK_TOKENS = 4096
"""Read at a time."""
WARPS = 16


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]  # triton ships no types
def _top_logprobs_kernel(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    drawn_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    values_ptr: tl.tensor,
    logits_stride: tl.tensor,
    vocabulary: tl.tensor,
    number: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    x_ptr = logits_ptr + row * logits_stride
    lanes = tl.arange(0, BLOCK)

    peak = tl.full((), float("-inf"), tl.float32)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + lanes
        peak = tl.maximum(peak, tl.max(tl.load(x_ptr + ids, mask=ids < vocabulary, other=float("-inf")), 0))
    summed = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, vocabulary, BLOCK):
        ids = begin + lanes
        summed += tl.exp(tl.load(x_ptr + ids, mask=ids < vocabulary, other=float("-inf")) - peak)
    whole = peak + tl.log(tl.sum(summed, 0))
    tl.store(drawn_ptr + place, tl.load(x_ptr + tl.load(tokens_ptr + row)) - whole)

    # Each pass finds the first of the largest logits after the last found one.
    last = tl.full((), float("inf"), tl.float32)
    last_id = tl.full((), -1, tl.int32)
    for rank in range(number):
        best = tl.full((), float("-inf"), tl.float32)
        best_id = tl.zeros((), tl.int32)
        for begin in range(0, vocabulary, BLOCK):
            ids = begin + lanes
            x = tl.load(x_ptr + ids, mask=ids < vocabulary, other=float("-inf"))
            is_after = (ids < vocabulary) & ((x < last) | ((x == last) & (ids > last_id)))
            highest = tl.max(tl.where(is_after, x, float("-inf")), 0)
            here = tl.min(tl.where(is_after & (x == highest), ids, vocabulary), 0)
            best_id = tl.where(highest > best, here, best_id)
            best = tl.maximum(best, highest)
        tl.store(ids_ptr + place * number + rank, best_id)
        tl.store(values_ptr + place * number + rank, best - whole)
        last = best
        last_id = best_id


def top_logprobs(logits: Tensor, rows: Tensor, tokens: Tensor, number: int) -> TopLogprobs:
    """Launch the kernel; shapes as in `top_logprobs_reference`, ids int32, equal ones by id.

    Rows of logits must be contiguous. The result of a row with a non-finite logit has no meaning.
    """
    num_rows, vocabulary, width = rows.shape[0], logits.shape[1], min(number, logits.shape[1])
    drawn = torch.empty(num_rows, device=logits.device)
    ids = torch.empty((num_rows, width), dtype=torch.int32, device=logits.device)
    values = torch.empty((num_rows, width), device=logits.device)
    _top_logprobs_kernel[(num_rows,)](
        logits, rows, tokens, drawn, ids, values, logits.stride(0), vocabulary, width,
        BLOCK=BLOCK_TOKENS, num_warps=WARPS,
    )  # fmt: skip
    return TopLogprobs(drawn, ids, values)
