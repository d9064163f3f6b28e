"""A row's logits with biases, penalties and masks, as its programs read them: steps 2 to 5 of README.md.

Biases and penalties change logits by marks: a table of an int32 for each row and token of the vocabulary.
Rows without biases and penalties have no marks, and the programs that mark them end at once.
"""

import triton
import triton.language as tl

from millrace_kernels.sampling.gpu.triton_table import (
    BIAS_BEGIN,
    BIAS_END,
    COLUMNS,
    FREQUENCY,
    HAS_FIXED_MASK,
    MASK,
    NUM_PROMPT,
    POSITION,
    PRESENCE,
    REPETITION,
    SLOT,
    float_of,
    is_changed,
    is_penalised,
    low_float,
)

MOST_TIMES: tl.constexpr = tl.constexpr((1 << 19) - 1)
"""Of a token's mark: the bits with the number of times that it was generated."""
IN_PROMPT: tl.constexpr = tl.constexpr(1 << 19)
"""Marks a token of the prompt."""
ENTRY_SHIFT: tl.constexpr = tl.constexpr(20)
MOST_ENTRIES: tl.constexpr = tl.constexpr((1 << 12) - 1)
"""The upper bits have the number of its bias among those of its row, from 1; 0: it has none."""


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def open_row(  # noqa: PLR0917
    number: tl.tensor,
    line: tl.tensor,
    logits_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    marks_ptr: tl.tensor,
    fixed_ptr: tl.tensor,
    masks_ptr: tl.tensor,
    logits_stride: tl.tensor,
    entries_stride: tl.tensor,
    vocabulary: tl.tensor,
) -> tl.tuple:
    """Return a row as `read_logits` reads it: the addresses of its tables, and its parameters."""
    slot = tl.load(line + SLOT)
    mask = tl.load(line + MASK)
    num_words = (vocabulary + 31) // 32
    return (
        logits_ptr + number * logits_stride,
        entries_ptr + slot * entries_stride + tl.load(line + BIAS_BEGIN),
        marks_ptr + number * vocabulary,
        fixed_ptr + slot * num_words,
        masks_ptr + mask * num_words,
        is_changed(line),
        float_of(line + REPETITION),
        float_of(line + FREQUENCY),
        float_of(line + PRESENCE),
        tl.load(line + HAS_FIXED_MASK) > 0,
        mask >= 0,
        vocabulary,
    )


@triton.jit  # type: ignore[untyped-decorator]
def read_logits(row: tl.tuple, ids: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the tokens' logits, without and with steps 2 to 5: -infinity beyond the end."""
    (
        logits_ptr, entries_ptr, marks_ptr, fixed_ptr, masks_ptr, has_marks, repetition, frequency, presence,
        has_fixed_mask, has_mask, vocabulary,
    ) = row  # fmt: skip
    is_token = ids < vocabulary
    x = tl.load(logits_ptr + ids, mask=is_token, other=float("-inf"))
    z = x
    if has_marks:
        mark = tl.load(marks_ptr + ids, mask=is_token, other=0)
        entry = (mark >> ENTRY_SHIFT) & MOST_ENTRIES
        bias = low_float(tl.load(entries_ptr + entry - 1, mask=entry > 0, other=0))
        z = tl.where(entry > 0, z + bias, z)
        # The plain quotient is only near to the right one on a GPU.
        repeated = tl.where(z > 0.0, tl.div_rn(z, repetition), z * repetition)
        z = tl.where((mark & (IN_PROMPT | MOST_TIMES)) != 0, repeated, z)
        times = mark & MOST_TIMES
        z = tl.where(times > 0, z - (times.to(tl.float32) * frequency + presence), z)
    if has_fixed_mask:
        z = _forbid(z, fixed_ptr, ids, is_token)
    if has_mask:
        z = _forbid(z, masks_ptr, ids, is_token)
    # The two zeros are equal.
    return x, tl.where(z == 0.0, 0.0, z)


@triton.jit  # type: ignore[untyped-decorator]
def _forbid(z: tl.tensor, mask_ptr: tl.tensor, ids: tl.tensor, is_token: tl.tensor) -> tl.tensor:
    word = tl.load(mask_ptr + ids // 32, mask=is_token, other=0)
    return tl.where(((word >> (ids % 32)) & 1) != 0, z, float("-inf"))


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
