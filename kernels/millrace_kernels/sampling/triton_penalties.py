"""Counts the generated tokens of the rows with penalties, and marks those of the prompt."""

import triton
import triton.language as tl

from millrace_kernels.sampling.triton_table import COLUMNS, NUM_PROMPT, POSITION, REPETITION, SLOT
from millrace_kernels.sampling.triton_weights import IN_PROMPT, float_of


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
    num_prompt = tl.load(line + NUM_PROMPT)
    first = tl.where(float_of(line + REPETITION) == 1.0, num_prompt, 0)
    at = first + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_known = at < tl.load(line + POSITION)
    token = tl.load(known + at, mask=is_known, other=0)
    count_ptr = counts_ptr + place * vocabulary + token
    tl.atomic_or(count_ptr, IN_PROMPT, mask=is_known & (at < num_prompt))
    tl.atomic_add(count_ptr, 1, mask=is_known & (at >= num_prompt))
