"""Counts the generated tokens of the rows with penalties."""

import triton
import triton.language as tl

from millrace_kernels.sampling.triton_table import COLUMNS, NUM_PROMPT, POSITION, SLOT


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _count_kernel(  # noqa: PLR0917
    table_ptr: tl.tensor,
    known_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    known_stride: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    place = tl.program_id(0).to(tl.int64)
    line = table_ptr + tl.load(rows_ptr + place) * COLUMNS
    known = known_ptr + tl.load(line + SLOT) * known_stride
    at = tl.load(line + NUM_PROMPT) + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_generated = at < tl.load(line + POSITION)
    token = tl.load(known + at, mask=is_generated, other=0)
    tl.atomic_add(counts_ptr + place * vocabulary + token, 1, mask=is_generated)
