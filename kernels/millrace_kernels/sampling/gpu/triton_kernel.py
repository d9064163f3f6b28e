"""Sampling for GPUs: a few launches of a program for each chunk of each row, and no sort (README.md).

Floats change only by single operations, as in the definition: `enable_fp_fusion` is off in each launch.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from millrace_kernels.sampling.columns import WHOLE, Draws, Sampled
from millrace_kernels.sampling.gpu import triton_shape
from millrace_kernels.sampling.gpu.triton_chunks import (
    NUMBERS,
    PLANES,
    _gather_kernel,
    _peak_kernel,
    _weigh_kernel,
)
from millrace_kernels.sampling.gpu.triton_draw import _draw_kernel
from millrace_kernels.sampling.gpu.triton_narrow import _narrow_kernel
from millrace_kernels.sampling.gpu.triton_penalties import MOST_ENTRIES, _clear_kernel, _mark_kernel
from millrace_kernels.sampling.gpu.triton_table import COLUMNS, lay_out
from millrace_kernels.sampling.gpu.triton_weights import BUCKETS, NUM_DIGITS
from millrace_kernels.sampling.state import SlotState
from millrace_kernels.transfer import upload


def sample(logits: Tensor, draws: Draws, state: SlotState, masks: Tensor | None = None) -> Sampled:
    """Launch what the draws need; shapes as in `sample_reference`. Logits' rows and masks must be contiguous.

    Also stores the tokens among the known ones, each at its position.
    """
    draws.check(state, masks)
    table = np.empty((logits.shape[0], COLUMNS.value), dtype=np.int64)
    lay_out(draws, table)
    sampled = torch.empty((2, logits.shape[0]), dtype=torch.int64, device=logits.device)
    work, there = _Work.of(draws, logits.shape[1]), upload(table, logits.device)
    _launch(logits, there, state, state.masks if masks is None else masks, work=work, sampled=sampled)
    return Sampled(sampled)


def sample_recorded(logits: Tensor, table: Tensor, state: SlotState, sampled: Tensor) -> None:
    """Draw what a table on the device asks for: without the host, so that a graph can record it.

    table int64 [rows, COLUMNS] comes from `lay_out`, and no row has a mask of its step. A row with a negative
    slot draws nothing. `sampled` int64 [2, rows] receives the numbers of Sampled.
    """
    _launch(logits, table, state, state.masks, work=_Work(True, True, True, True), sampled=sampled)


class _Work(NamedTuple):
    """The launches that a step's draws need. The kernels look at each row again: most do not concern all."""

    is_changed: bool
    is_random: bool
    is_cut: bool
    is_top_p_alone: bool
    """Whether top_p alone cuts some row: this may be flat."""

    @classmethod
    def of(cls, draws: Draws, vocabulary: int) -> "_Work":
        """Return the launches that some row needs."""
        asked = draws.parameters
        num_biases = (draws.bias_end - draws.bias_begin).max(initial=0)
        assert num_biases <= MOST_ENTRIES.value, f"a row has {num_biases} biases: marks can't number so many"
        is_penalised = (asked["repetition"] != 1) | (asked["frequency"] != 0) | (asked["presence"] != 0)
        is_random = asked["inverse_temperature"] > 0
        is_top_k = (asked["top_k"] > 0) & (asked["top_k"] < vocabulary)
        is_top_p = asked["share"] < WHOLE
        is_changed = bool(num_biases > 0 or is_penalised.any())
        others = (is_random, is_random & (is_top_k | is_top_p), is_random & is_top_p & ~is_top_k)
        return cls(is_changed, *(bool(rows.any()) for rows in others))


def _launch(
    logits: Tensor, table: Tensor, state: SlotState, masks: Tensor, *, work: _Work, sampled: Tensor
) -> None:
    shape, device, (num_rows, vocabulary) = triton_shape.SHAPE, logits.device, logits.shape
    num_chunks = shape.count_chunks(vocabulary)
    chunks = triton.next_power_of_2(num_chunks)

    def allocate(is_needed: bool, dtype: torch.dtype, width: int) -> Tensor:  # noqa: FBT001
        """Without need it is a little memory, because a launch needs an address."""
        return torch.empty(num_rows * width if is_needed else 1, dtype=dtype, device=device)

    marks = allocate(work.is_changed, torch.int32, vocabulary)
    found = allocate(True, torch.int64, PLANES.value * num_chunks + NUMBERS.value)
    buckets = allocate(work.is_cut, torch.int32, (1 + num_chunks) * BUCKETS.value)
    values = allocate(work.is_cut, torch.float32, shape.room)
    ids = allocate(work.is_cut, torch.int32, shape.room)
    tables = (logits, table, state.biases, marks, state.masks, masks, found)
    known, strides = state.tokens, (logits.stride(0), state.biases.stride(0))
    grid, options = (num_chunks, num_rows), {"num_warps": shape.chunk_warps, "enable_fp_fusion": False}
    if work.is_changed:
        _clear_kernel[grid](table, marks, vocabulary, BLOCK=shape.chunk)
        _mark_kernel[(shape.markers, num_rows)](
            table, state.biases, known, marks, strides[1], known.stride(0), vocabulary, BLOCK=shape.marked
        )
    _peak_kernel[grid](*tables, buckets, *strides, vocabulary, CHUNK=shape.chunk, **options)
    if work.is_random:
        _weigh_kernel[grid](
            *tables, buckets, *strides, vocabulary, CHUNK=shape.chunk, CHUNKS=chunks, **options
        )
    if work.is_cut:
        _gather_kernel[grid](
            *tables, buckets, values, ids, *strides, vocabulary,
            CHUNK=shape.chunk, CHUNKS=chunks, ROOM=shape.room, **options,
        )  # fmt: skip
    for count in range(NUM_DIGITS.value + 1) if work.is_top_p_alone else ():
        _narrow_kernel[grid](
            *tables, *strides, vocabulary, count, CHUNK=shape.chunk, CHUNKS=chunks, ROOM=shape.room, **options
        )
    _draw_kernel[(num_rows,)](
        *tables, values, ids, known, sampled, *strides, known.stride(0), vocabulary,
        CHUNK=shape.chunk, CHUNKS=chunks, ROOM=shape.room, BLOCK=shape.candidates, TRIED=shape.bounds,
        num_warps=shape.draw_warps, enable_fp_fusion=False,
    )  # fmt: skip
