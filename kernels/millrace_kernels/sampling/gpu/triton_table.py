"""The table of a launch, one line for each row: a draw's parameters, its position and its indices."""

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from millrace_kernels.sampling.columns import PARAMETERS, WHOLE, Draws

# The first columns are in the order of PARAMETERS.
COLUMNS: tl.constexpr = tl.constexpr(15)
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
WHOLE_SHARE: tl.constexpr = tl.constexpr(WHOLE)


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def float_of(column: tl.tensor) -> tl.tensor:
    """Return the float32 of a column's bits."""
    return low_float(tl.load(column))


@triton.jit  # type: ignore[untyped-decorator]
def low_float(number: tl.tensor) -> tl.tensor:
    """Return the float32 whose bits are the low half of an int64."""
    return number.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def is_penalised(line: tl.tensor) -> tl.tensor:
    """Return whether a row has a penalty."""
    counts = (float_of(line + FREQUENCY) != 0.0) | (float_of(line + PRESENCE) != 0.0)
    return (float_of(line + REPETITION) != 1.0) | counts


@triton.jit  # type: ignore[untyped-decorator]
def is_changed(line: tl.tensor) -> tl.tensor:
    """Return whether biases or penalties change a row's logits."""
    is_biased = tl.load(line + BIAS_BEGIN) < tl.load(line + BIAS_END)
    return (tl.load(line + SLOT) >= 0) & (is_biased | is_penalised(line))


@triton.jit  # type: ignore[untyped-decorator]
def is_top_k(line: tl.tensor, vocabulary: tl.tensor) -> tl.tensor:
    """Return whether top_k cuts a row."""
    top_k = tl.load(line + TOP_K)
    return (top_k > 0) & (top_k < vocabulary)


@triton.jit  # type: ignore[untyped-decorator]
def is_cut(line: tl.tensor, vocabulary: tl.tensor) -> tl.tensor:
    """Return whether top_k or top_p cuts a row that draws at random."""
    is_short = is_top_k(line, vocabulary) | (tl.load(line + SHARE) < WHOLE_SHARE)
    return (tl.load(line + SLOT) >= 0) & (float_of(line + INVERSE) > 0.0) & is_short


def lay_out(draws: Draws, table: NDArray[np.int64]) -> None:
    """Write the kernels' table, int64 [rows, COLUMNS], with floats as their bits."""
    halves = draws.parameters.view(np.int32).reshape(-1, PARAMETERS.itemsize // 4)
    table[:, : SHARE.value] = halves[:, : SHARE.value]
    wholes = draws.parameters.view(np.int64).reshape(len(halves), -1)
    table[:, SHARE.value : SLOT.value] = wholes[:, SHARE.value // 2 :]
    table[:, SLOT.value :] = draws.places
