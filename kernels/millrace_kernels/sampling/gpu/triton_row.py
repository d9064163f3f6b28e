"""A row's logits, as the programs of its parts read them: steps 2 to 5 of README.md."""

import triton
import triton.language as tl

from millrace_kernels.sampling.gpu.triton_table import (
    BIAS_BEGIN,
    FREQUENCY,
    HAS_FIXED_MASK,
    MASK,
    PRESENCE,
    REPETITION,
    SLOT,
    float_of,
    is_changed,
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
    """Return what `read_logits` reads of a row: where its tables begin, and what it asks for."""
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
