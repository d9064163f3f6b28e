"""Spreads the biases of the rows that have some over the vocabulary."""

import triton
import triton.language as tl

from millrace_kernels.sampling.triton_table import BIAS_BEGIN, BIAS_END, COLUMNS, SLOT
from millrace_kernels.sampling.triton_weights import low_float


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _bias_kernel(  # noqa: PLR0917
    table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    biases_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    entries_stride: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    place = tl.program_id(0).to(tl.int64)
    line = table_ptr + tl.load(rows_ptr + place) * COLUMNS
    entries = entries_ptr + tl.load(line + SLOT) * entries_stride
    end = tl.load(line + BIAS_END)
    for begin in range(tl.load(line + BIAS_BEGIN), end, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        entry = tl.load(entries + at, mask=at < end, other=0)
        tl.store(biases_ptr + place * vocabulary + (entry >> 32), low_float(entry), mask=at < end)
