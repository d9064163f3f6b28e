"""The choice of experts on GPUs, and the rows sorted by it. No number on the device decides a launch."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.experts.reference import Choice
from millrace_kernels.step import Routing, Scoring

MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 16, 64
"""Rows of a block: tl.dot needs at least 16. Blocks of 64 read each expert a quarter as often."""
CHUNK = 1024
"""Entries that a program of the sort reads at once."""


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _route_kernel(  # noqa: PLR0917
    scores_ptr: tl.tensor,
    experts_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    stride: tl.tensor,
    NUM_EXPERTS: tl.constexpr,  # noqa: N803
    NUM_CHOSEN: tl.constexpr,  # noqa: N803
    IS_SOFTMAX: tl.constexpr,  # noqa: N803
    IS_NORMALISED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    is_expert = experts < NUM_EXPERTS
    low = float("-inf")
    scores = tl.load(scores_ptr + row * stride + experts, mask=is_expert, other=low)
    # A NaN differs from itself. It counts as infinity, so that its row has experts, too.
    keys = tl.where(scores == scores, scores, float("inf"))  # noqa: PLR0124
    is_left = is_expert
    for _ in range(NUM_CHOSEN):
        best = tl.max(tl.where(is_left, keys, low), 0)
        first = tl.min(tl.where(is_left & (keys == best), experts, BLOCK), 0)
        is_left = is_left & (experts != first)
    is_chosen = is_expert & ~is_left
    if IS_SOFTMAX:
        powers = tl.exp(scores - tl.max(keys, 0))
        weights = powers / tl.sum(powers, 0)
    else:
        weights = 1.0 / (1.0 + tl.exp(-scores))
    if IS_NORMALISED:
        weights = weights / tl.sum(tl.where(is_chosen, weights, 0.0), 0)
    places = row * NUM_CHOSEN + tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(experts_ptr + places, experts, mask=is_chosen)
    tl.store(weights_ptr + places, weights, mask=is_chosen)


@triton.jit(do_not_specialize=["num_entries", "num_blocks"])  # type: ignore[untyped-decorator]
def _sort_kernel(  # noqa: PLR0917
    experts_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    owners_ptr: tl.tensor,
    num_entries: tl.tensor,
    num_blocks: tl.tensor,
    NUM_EXPERTS: tl.constexpr,  # noqa: N803
    BINS: tl.constexpr,  # noqa: N803
    BLOCK_ROWS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
) -> None:
    """Each program counts the entries of all experts, and writes those of its own."""
    mine = tl.program_id(0)
    bins, steps = tl.arange(0, BINS), tl.arange(0, CHUNK)
    counts = tl.zeros((BINS,), dtype=tl.int32)
    for begin in range(0, num_entries, CHUNK):
        at = begin + steps
        experts = tl.load(experts_ptr + at, mask=at < num_entries, other=NUM_EXPERTS)
        counts += tl.histogram(experts, BINS)
    blocks = tl.where(bins < NUM_EXPERTS, (counts + BLOCK_ROWS - 1) // BLOCK_ROWS, 0)
    first = tl.sum(tl.where(bins < mine, blocks, 0), 0)
    last = first + tl.sum(tl.where(bins == mine, blocks, 0), 0)
    place = first * BLOCK_ROWS
    for begin in range(0, num_entries, CHUNK):
        at = begin + steps
        is_mine = tl.load(experts_ptr + at, mask=at < num_entries, other=NUM_EXPERTS) == mine
        tl.store(entries_ptr + place + tl.cumsum(is_mine.to(tl.int32), 0) - 1, at, mask=is_mine)
        place += tl.sum(is_mine.to(tl.int32), 0)
    padding = place + tl.arange(0, BLOCK_ROWS)
    tl.store(entries_ptr + padding, num_entries, mask=padding < last * BLOCK_ROWS)
    for begin in range(first, last, CHUNK):
        at = begin + steps
        tl.store(owners_ptr + at, mine, mask=at < last)
    if mine == 0:
        for begin in range(tl.sum(blocks, 0), num_blocks, CHUNK):
            at = begin + steps
            tl.store(owners_ptr + at, -1, mask=at < num_blocks)


@dataclass(frozen=True, slots=True)
class SortedChoice(Choice):
    """The experts of each row, and blocks of entries (row * num_chosen + rank), each of one expert."""

    entries: Tensor
    """int32 [blocks * block_rows]: an expert's last block ends with numbers past the last entry."""
    owners: Tensor
    """int32 [blocks]: each block's expert; -1: the block has no entries."""
    block_rows: int


def route(scores: Tensor, routing: Routing) -> SortedChoice:
    """Launch the kernels; float32 scores [rows, experts] as in `route_reference`, rows contiguous."""
    (num_rows, num_experts), num_chosen = scores.shape, routing.num_chosen
    experts = torch.empty((num_rows, num_chosen), dtype=torch.int32, device=scores.device)
    weights = torch.empty((num_rows, num_chosen), device=scores.device)
    _route_kernel[(num_rows,)](
        scores, experts, weights, scores.stride(0),
        NUM_EXPERTS=num_experts, NUM_CHOSEN=num_chosen, IS_SOFTMAX=routing.scoring is Scoring.SOFTMAX,
        IS_NORMALISED=routing.is_normalised, BLOCK=triton.next_power_of_2(num_experts),
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    num_entries = num_rows * num_chosen
    block_rows = choose_block_rows(num_entries, num_experts)
    num_blocks = count_blocks(num_entries, num_experts, block_rows)
    entries = torch.empty(num_blocks * block_rows, dtype=torch.int32, device=scores.device)
    owners = torch.empty(num_blocks, dtype=torch.int32, device=scores.device)
    _sort_kernel[(num_experts,)](
        experts, entries, owners, num_entries, num_blocks,
        NUM_EXPERTS=num_experts, BINS=triton.next_power_of_2(num_experts + 1), BLOCK_ROWS=block_rows,
        CHUNK=CHUNK,
    )  # fmt: skip
    return SortedChoice(experts, weights, entries, owners, block_rows)


def choose_block_rows(num_entries: int, num_experts: int) -> int:
    """Return the rows of a block: few where experts have few, else many.

    Two sizes, because each compiles kernels of its own: a replica's first steps, of one token and of a
    thousand, compile both before it is ready.
    """
    return MIN_BLOCK_ROWS if num_entries <= MIN_BLOCK_ROWS * num_experts else MAX_BLOCK_ROWS


def count_blocks(num_entries: int, num_experts: int, block_rows: int) -> int:
    """Return the most blocks that the entries fill, whichever experts they have."""
    return min(num_entries, num_entries // block_rows + num_experts)
