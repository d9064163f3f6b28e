"""Marks what changes a row's logits, in a table of an int32 for each token of the vocabulary.

Rows without such changes have no marks, and their programs end at once.
"""

import triton
import triton.language as tl

from millrace_kernels.sampling.gpu.triton_row import ENTRY_SHIFT, IN_PROMPT
from millrace_kernels.sampling.gpu.triton_table import (
    BIAS_BEGIN,
    BIAS_END,
    COLUMNS,
    NUM_PROMPT,
    POSITION,
    REPETITION,
    SLOT,
    float_of,
    is_changed,
    is_penalised,
)


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _clear_kernel(
    table_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    number = tl.program_id(1).to(tl.int64)
    if is_changed(table_ptr + number * COLUMNS):
        ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(marks_ptr + number * vocabulary + ids, tl.zeros((BLOCK,), tl.int32), mask=ids < vocabulary)


@triton.jit  # type: ignore[untyped-decorator]
def _mark_kernel(  # noqa: PLR0917
    table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    known_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    entries_stride: tl.tensor,
    known_stride: tl.tensor,
    vocabulary: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Mark the tokens with a bias by its number, the prompt's tokens, and count the generated ones."""
    number = tl.program_id(1).to(tl.int64)
    line = table_ptr + number * COLUMNS
    if is_changed(line):
        slot = tl.load(line + SLOT)
        mine_ptr = marks_ptr + number * vocabulary
        offset = tl.program_id(0) * BLOCK
        stride = tl.num_programs(0) * BLOCK
        first_entry = tl.load(line + BIAS_BEGIN)
        last_entry = tl.load(line + BIAS_END)
        for begin in range(first_entry + offset, last_entry, stride):
            at = begin + tl.arange(0, BLOCK)
            is_entry = at < last_entry
            entry = tl.load(entries_ptr + slot * entries_stride + at, mask=is_entry, other=0)
            shifted = (at - first_entry + 1).to(tl.int32) << ENTRY_SHIFT
            tl.atomic_or(mine_ptr + (entry >> 32), shifted, mask=is_entry)
        if is_penalised(line):
            num_prompt = tl.load(line + NUM_PROMPT)
            position = tl.load(line + POSITION)
            first = tl.where(float_of(line + REPETITION) == 1.0, num_prompt, 0)
            for begin in range(first + offset, position, stride):
                at = begin + tl.arange(0, BLOCK)
                is_known = at < position
                token = tl.load(known_ptr + slot * known_stride + at, mask=is_known, other=0)
                tl.atomic_or(mine_ptr + token, IN_PROMPT, mask=is_known & (at < num_prompt))
                tl.atomic_add(mine_ptr + token, 1, mask=is_known & (at >= num_prompt))
