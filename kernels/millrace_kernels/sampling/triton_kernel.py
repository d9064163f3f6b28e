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
from millrace_kernels.sampling.triton_cut import _cut_kernel
from millrace_kernels.sampling.triton_draw import _sample_kernel
from millrace_kernels.sampling.triton_penalties import _count_kernel
from millrace_kernels.sampling.triton_table import COLUMNS, COUNTS, CUT, FOUND, lay_out
from millrace_kernels.transfer import upload_all

BLOCK_TOKENS = 4096
"""Tokens read at a time."""
BLOCK_CANDIDATES = 512
"""Candidates read at a time, each compared with all bounds of a pass."""
BOUNDS = 16
"""Bounds tried in a pass: eight passes find one of 2^32 numbers."""
COUNTED = 1024
"""Generated tokens counted by a program."""
WARPS = 16


def sample(logits: Tensor, draws: Draws, known_tokens: Tensor, masks: Tensor | None = None) -> Sampled:
    """Launch the kernels; shapes as in `sample_reference`. A row of logits must be contiguous, and masks.

    Also stores the tokens among the known ones, each at its position.
    """
    draws.check_masks(masks)
    device, (num_rows, vocabulary) = logits.device, logits.shape
    penalised, cut = _find_penalised(draws), _find_cut(draws, vocabulary)
    table = np.empty((num_rows, COLUMNS.value), dtype=np.int64)
    lay_out(draws, table)
    table[penalised, COUNTS.value], table[cut, CUT.value] = np.arange(len(penalised)), np.arange(len(cut))
    columns, penalised_rows, cut_rows = upload_all((table.reshape(-1), penalised, cut), device)
    counts = _count(
        draws,
        columns,
        penalised=penalised,
        penalised_rows=penalised_rows,
        known_tokens=known_tokens,
        vocabulary=vocabulary,
    )
    scratch = _Scratch.allocate(len(cut), vocabulary, device)
    sampled = torch.empty((2, num_rows), dtype=torch.int64, device=device)
    _launch(
        logits,
        columns,
        counts=counts,
        masks=masks,
        scratch=scratch,
        known_tokens=known_tokens,
        sampled=sampled,
    )
    if len(cut):
        _cut_kernel[(len(cut),)](
            columns, cut_rows, *scratch, known_tokens, sampled, known_tokens.stride(0), vocabulary,
            BLOCK=BLOCK_CANDIDATES, TRIED=BOUNDS, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return Sampled(sampled)


def sample_plain(logits: Tensor, table: Tensor, known_tokens: Tensor, sampled: Tensor) -> None:
    """Draw rows without cuts, from a table on the device: without the host, so that a graph can record it.

    table int64 [rows, COLUMNS] comes from `lay_out`. A row with a negative slot draws nothing. `sampled`
    int64 [2, rows] receives the numbers of Sampled.
    """
    nothing = torch.empty(1, dtype=torch.int32, device=logits.device)
    scratch = _Scratch.allocate(0, logits.shape[1], logits.device)
    _launch(
        logits,
        table,
        counts=nothing,
        masks=None,
        scratch=scratch,
        known_tokens=known_tokens,
        sampled=sampled,
    )


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
    *,
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


def _count(
    draws: Draws,
    columns: Tensor,
    *,
    penalised: NDArray[np.int64],
    penalised_rows: Tensor,
    known_tokens: Tensor,
    vocabulary: int,
) -> Tensor:
    """Return int32 [penalised rows, vocabulary]: the count of each generated token."""
    if not len(penalised):
        return torch.empty(1, dtype=torch.int32, device=columns.device)
    counts = torch.zeros((len(penalised), vocabulary), dtype=torch.int32, device=columns.device)
    longest = int((draws.position - draws.num_prompt)[penalised].max())
    _count_kernel[(len(penalised), triton.cdiv(longest, COUNTED))](
        columns, known_tokens, counts, penalised_rows, known_tokens.stride(0), vocabulary, BLOCK=COUNTED
    )
    return counts


def _find_penalised(draws: Draws) -> NDArray[np.int64]:
    """Return the rows with penalties."""
    is_wanted = (draws.parameters["frequency"] != 0) | (draws.parameters["presence"] != 0)
    return np.flatnonzero(is_wanted & (draws.position > draws.num_prompt))


def _find_cut(draws: Draws, vocabulary: int) -> NDArray[np.int64]:
    """Return the random rows that top_k or top_p cuts."""
    parameters = draws.parameters
    is_top_k = (parameters["top_k"] > 0) & (parameters["top_k"] < vocabulary)
    return np.flatnonzero(
        (parameters["inverse_temperature"] > 0) & (is_top_k | (parameters["share"] < WHOLE))
    )
