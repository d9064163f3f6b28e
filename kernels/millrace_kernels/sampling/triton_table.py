"""The table of a launch, one line for each row: a draw's parameters, its position and its indices."""

import numpy as np
import triton.language as tl
from numpy.typing import NDArray

from millrace_kernels.sampling.columns import PARAMETERS, Draws

# The first columns are in the order of PARAMETERS.
COLUMNS: tl.constexpr = tl.constexpr(13)
INVERSE: tl.constexpr = tl.constexpr(0)
FREQUENCY: tl.constexpr = tl.constexpr(1)
PRESENCE: tl.constexpr = tl.constexpr(2)
TOP_K: tl.constexpr = tl.constexpr(3)
SHARE: tl.constexpr = tl.constexpr(4)
SEED: tl.constexpr = tl.constexpr(5)
LEAST: tl.constexpr = tl.constexpr(6)
SLOT: tl.constexpr = tl.constexpr(7)
NUM_PROMPT: tl.constexpr = tl.constexpr(8)
POSITION: tl.constexpr = tl.constexpr(9)
MASK: tl.constexpr = tl.constexpr(10)
COUNTS: tl.constexpr = tl.constexpr(11)
CUT: tl.constexpr = tl.constexpr(12)
FOUND: tl.constexpr = tl.constexpr(4)
"""Columns that the first kernel fills for the second: number of candidates, sum of all weights, peak."""


def lay_out(draws: Draws, table: NDArray[np.int64]) -> None:
    """Write the kernels' table, int64 [rows, COLUMNS], with floats as their bits.

    It marks no row as penalised or cut.
    """
    halves = draws.parameters.view(np.int32).reshape(-1, 2 * PARAMETERS.itemsize // 8)
    table[:, : TOP_K.value + 1] = halves[:, : TOP_K.value + 1]
    table[:, SHARE.value : LEAST.value + 1] = draws.parameters.view(np.int64).reshape(len(halves), -1)[:, 2:]
    table[:, SLOT.value : MASK.value + 1] = draws.places
    table[:, COUNTS.value :] = -1
