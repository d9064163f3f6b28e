"""Sampling for GPUs: one program a row, in a few passes over the vocabulary and without a sort (README.md).

Floats change only by single operations, as in the definition: `enable_fp_fusion` is off in each launch.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.columns import WHOLE, Draws, Sampled
from millrace_kernels.sampling.state import SlotState
from millrace_kernels.sampling.triton_bias import _bias_kernel
from millrace_kernels.sampling.triton_cut import _cut_kernel
from millrace_kernels.sampling.triton_draw import _sample_kernel
from millrace_kernels.sampling.triton_penalties import _count_kernel
from millrace_kernels.sampling.triton_table import BIASES, COLUMNS, COUNTS, CUT, FOUND, lay_out
from millrace_kernels.transfer import upload_all

BLOCK_TOKENS = 4096
"""Tokens read at a time."""
BLOCK_CANDIDATES = 512
"""Candidates read at a time, each compared with all bounds of a pass."""
BOUNDS = 16
"""Bounds tried in a pass: eight passes find one of 2^32 numbers."""
COUNTED = 1024
"""Known tokens counted by a program."""
BIASED = 1024
"""Biases spread at a time."""
WARPS = 16


def sample(logits: Tensor, draws: Draws, state: SlotState, masks: Tensor | None = None) -> Sampled:
    """Launch the kernels; shapes as in `sample_reference`. A row of logits must be contiguous, and masks.

    Also stores the tokens among the known ones, each at its position.
    """
    draws.check(state, masks)
    device, (num_rows, vocabulary) = logits.device, logits.shape
    biased = np.flatnonzero(draws.bias_begin < draws.bias_end)
    penalised, cut = _find_penalised(draws), _find_cut(draws, vocabulary)
    table = np.empty((num_rows, COLUMNS.value), dtype=np.int64)
    lay_out(draws, table)
    for column, numbers in ((BIASES, biased), (COUNTS, penalised), (CUT, cut)):
        table[numbers, column.value] = np.arange(len(numbers))
    uploaded = (table.reshape(-1), biased, penalised, cut)
    columns, biased_rows, penalised_rows, cut_rows = upload_all(uploaded, device)
    changes = _Changes(
        _spread(columns, biased_rows, state.biases, vocabulary),
        _count(
            draws,
            columns,
            penalised=penalised,
            penalised_rows=penalised_rows,
            known_tokens=state.tokens,
            vocabulary=vocabulary,
        ),
        state.masks,
        state.masks if masks is None else masks,
    )
    scratch = _Scratch.allocate(len(cut), vocabulary, device)
    sampled = torch.empty((2, num_rows), dtype=torch.int64, device=device)
    _launch(logits, columns, changes, scratch=scratch, known_tokens=state.tokens, sampled=sampled)
    if len(cut):
        _cut_kernel[(len(cut),)](
            columns, cut_rows, *scratch, state.tokens, sampled, state.tokens.stride(0), vocabulary,
            BLOCK=BLOCK_CANDIDATES, TRIED=BOUNDS, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return Sampled(sampled)


def sample_plain(logits: Tensor, table: Tensor, known_tokens: Tensor, sampled: Tensor) -> None:
    """Draw rows without cuts, from a table on the device: without the host, so that a graph can record it.

    table int64 [rows, COLUMNS] comes from `lay_out`. A row with a negative slot draws nothing. `sampled`
    int64 [2, rows] receives the numbers of Sampled.
    """
    no_ints = torch.empty(1, dtype=torch.int32, device=logits.device)
    nothing = _Changes(torch.empty(1, device=logits.device), no_ints, no_ints, no_ints)
    scratch = _Scratch.allocate(0, logits.shape[1], logits.device)
    _launch(logits, table, nothing, scratch=scratch, known_tokens=known_tokens, sampled=sampled)


class _Changes(NamedTuple):
    """What changes logits before a draw: of rows that have none, anything of the type."""

    biases: Tensor
    """float32 [biased rows, vocabulary]"""
    counts: Tensor
    """int32 [penalised rows, vocabulary]"""
    fixed_masks: Tensor
    """int32 [slots, words]"""
    masks: Tensor
    """int32 [masks, words]"""


class _Scratch(NamedTuple):
    """Memory that the first kernel fills for the second, by cut row."""

    found: Tensor
    values: Tensor
    ids: Tensor

    @classmethod
    def allocate(cls, num_cut: int, vocabulary: int, device: torch.device) -> "_Scratch":
        """Allocate. Without cut rows it is a little memory, because a launch needs an address."""
        room = max(1, num_cut * vocabulary)
        return cls(
            torch.empty((max(1, num_cut), FOUND.value), dtype=torch.int64, device=device),
            torch.empty(room, device=device),
            torch.empty(room, dtype=torch.int32, device=device),
        )


def _launch(
    logits: Tensor,
    table: Tensor,
    changes: _Changes,
    *,
    scratch: _Scratch,
    known_tokens: Tensor,
    sampled: Tensor,
) -> None:
    _sample_kernel[(logits.shape[0],)](
        logits, table, *changes, *scratch, known_tokens, sampled,
        logits.stride(0), known_tokens.stride(0), logits.shape[1],
        BLOCK=BLOCK_TOKENS, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def _spread(columns: Tensor, biased_rows: Tensor, entries: Tensor, vocabulary: int) -> Tensor:
    """Return float32 [biased rows, vocabulary]: what to add to each token's logit."""
    num_rows = len(biased_rows)
    if not num_rows:
        return torch.empty(1, device=columns.device)
    biases = torch.zeros((num_rows, vocabulary), device=columns.device)
    _bias_kernel[(num_rows,)](
        columns, entries, biases, biased_rows, entries.stride(0), vocabulary, BLOCK=BIASED
    )
    return biases


def _count(
    draws: Draws,
    columns: Tensor,
    *,
    penalised: NDArray[np.int64],
    penalised_rows: Tensor,
    known_tokens: Tensor,
    vocabulary: int,
) -> Tensor:
    """Return int32 [penalised rows, vocabulary]: counts of generated tokens, and marks of the prompt's."""
    if not len(penalised):
        return torch.empty(1, dtype=torch.int32, device=columns.device)
    counts = torch.zeros((len(penalised), vocabulary), dtype=torch.int32, device=columns.device)
    begins = np.where(draws.parameters["repetition"] == 1, draws.num_prompt, 0)
    longest = int((draws.position - begins)[penalised].max())
    _count_kernel[(len(penalised), triton.cdiv(longest, COUNTED))](
        columns, known_tokens, counts, penalised_rows, known_tokens.stride(0), vocabulary, BLOCK=COUNTED
    )
    return counts


def _find_penalised(draws: Draws) -> NDArray[np.int64]:
    """Return the rows with penalties."""
    parameters = draws.parameters
    counts_output = (parameters["frequency"] != 0) | (parameters["presence"] != 0)
    has_output = draws.position > draws.num_prompt
    return np.flatnonzero((parameters["repetition"] != 1) | (counts_output & has_output))


def _find_cut(draws: Draws, vocabulary: int) -> NDArray[np.int64]:
    """Return the random rows that top_k or top_p cuts."""
    parameters = draws.parameters
    is_top_k = (parameters["top_k"] > 0) & (parameters["top_k"] < vocabulary)
    return np.flatnonzero(
        (parameters["inverse_temperature"] > 0) & (is_top_k | (parameters["share"] < WHOLE))
    )
