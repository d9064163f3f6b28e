"""The table of a launch, one line for each row: a draw's parameters, its position and its indices."""

import numpy as np
import triton.language as tl
from numpy.typing import NDArray

from millrace_kernels.sampling.columns import PARAMETERS, Draws

# The first columns are in the order of PARAMETERS.
COLUMNS: tl.constexpr = tl.constexpr(18)
INVERSE: tl.constexpr = tl.constexpr(0)
FREQUENCY: tl.constexpr = tl.constexpr(1)
PRESENCE: tl.constexpr = tl.constexpr(2)
REPETITION: tl.constexpr = tl.constexpr(3)
TOP_K: tl.constexpr = tl.constexpr(4)
HAS_FIXED_MASK: tl.constexpr = tl.constexpr(5)
SHARE: tl.constexpr = tl.constexpr(6)
SEED: tl.constexpr = tl.constexpr(7)
LEAST: tl.constexpr = tl.constexpr(8)
SLOT: tl.constexpr = tl.constexpr(9)
NUM_PROMPT: tl.constexpr = tl.constexpr(10)
POSITION: tl.constexpr = tl.constexpr(11)
MASK: tl.constexpr = tl.constexpr(12)
BIAS_BEGIN: tl.constexpr = tl.constexpr(13)
BIAS_END: tl.constexpr = tl.constexpr(14)
COUNTS: tl.constexpr = tl.constexpr(15)
BIASES: tl.constexpr = tl.constexpr(16)
CUT: tl.constexpr = tl.constexpr(17)
FOUND: tl.constexpr = tl.constexpr(4)
"""Columns that the first kernel fills for the second: number of candidates, sum of all weights, peak."""


def lay_out(draws: Draws, table: NDArray[np.int64]) -> None:
    """Write the kernels' table, int64 [rows, COLUMNS], with floats as their bits.

    It marks no row as penalised, biased or cut.
    """
    halves = draws.parameters.view(np.int32).reshape(-1, PARAMETERS.itemsize // 4)
    table[:, : SHARE.value] = halves[:, : SHARE.value]
    wholes = draws.parameters.view(np.int64).reshape(len(halves), -1)
    table[:, SHARE.value : SLOT.value] = wholes[:, SHARE.value // 2 :]
    table[:, SLOT.value : COUNTS.value] = draws.places
    table[:, COUNTS.value :] = -1
