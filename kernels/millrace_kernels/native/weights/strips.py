"""Writes rows as strips of 16 outputs, in each format's layout (linear/README.md)."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from millrace_kernels.linear.format import GROUP, Format, Number
from millrace_kernels.linear.rounding import keep_rounded, round_int4, round_int8
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.native.abi import LANES
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.weights.lanes import Allocate, cut, put
from millrace_kernels.native.weights.stored_strips import Fp8Strips, Int4GroupStrips
from millrace_kernels.weights import Part, require_plain

SCALES_BYTES = 2 * LANES


class Strips(Protocol):
    """A matrix in construction."""

    @property
    def data(self) -> Tensor:
        """The strips, for the kernels."""

    @property
    def scales(self) -> Tensor | None:
        """The scales beside the strips; None if the strips contain them."""

    def every_other(self, first: int) -> Self:
        """Return strips `first`, `first` + 2 and so on."""

    def write(self, begin: int, rows: Part) -> None:
        """Write rows [count, inputs] as the outputs starting at `begin`. Quantised ones stay as they are."""


def allocate_strips(allocate: Allocate, form: Format, dtype: torch.dtype, count: int, inputs: int) -> Strips:
    """Return strips of zeros in a format of `fit_form`. Raises RecordError for a width without a kernel."""
    if not form.rounds_inputs:
        _require_pairs(dtype, inputs)
    if form == Format.DENSE:
        return DenseStrips(_allocate_dense(allocate, dtype, count, inputs))
    if form.number is Number.FP8:
        return Fp8Strips.allocate(allocate, form, count, inputs)
    groups = -(-inputs // GROUP)
    if form.number is Number.INT4 and form != Format.INT4:
        return Int4GroupStrips.allocate(allocate, form, count, inputs)
    if form == Format.INT4:
        group_bytes = SCALES_BYTES + GROUP // 2 * LANES
        return Int4Strips(allocate(count * groups * group_bytes).view(count, groups, group_bytes))
    data = allocate(count * groups * GROUP * LANES).view(count, groups * GROUP // 4, LANES, 4)
    return Int8Strips(data, allocate(count * LANES * 4).view(torch.float32).view(count, LANES))


def _require_pairs(dtype: torch.dtype, inputs: int) -> None:
    if dtype == torch.bfloat16 and inputs % 2:
        raise RecordError(
            f"a matrix of {inputs} inputs in bfloat16, but native products read pairs: use float32"
        )


def _allocate_dense(allocate: Allocate, dtype: torch.dtype, count: int, inputs: int) -> Tensor:
    pairs = 2 if dtype == torch.bfloat16 else 1
    memory = allocate(count * inputs * LANES * dtype.itemsize).view(dtype)
    return memory.view(count, inputs // pairs, LANES, pairs)


@dataclass(slots=True)
class DenseStrips:
    """Strips of unrounded numbers."""

    data: Tensor
    """bfloat16 [strips, inputs / 2, 16, 2] or float32 [strips, inputs, 16, 1]"""
    scales: None = None

    def every_other(self, first: int) -> "DenseStrips":
        """Return a view of every other strip."""
        return DenseStrips(self.data[first::2])

    def write(self, begin: int, rows: Part) -> None:
        """Copy the rows."""
        plain = require_plain(rows)
        put(self.data.permute(0, 2, 1, 3), begin, plain.reshape(len(plain), -1, self.data.shape[3]))


@dataclass(slots=True)
class Int8Strips:
    """Strips of bytes, each an integer plus 128."""

    data: Tensor
    """uint8 [strips, inputs / 4, 16, 4]"""
    scales: Tensor
    """float32 [strips, 16]"""

    def every_other(self, first: int) -> "Int8Strips":
        """Return a view of every other strip."""
        return Int8Strips(self.data[first::2], self.scales[first::2])

    def write(self, begin: int, rows: Part) -> None:
        """Round plain rows, and write bytes and scales."""
        for at, some in cut(rows):
            rounded = keep_rounded(some) if isinstance(some, StoredMatrix) else round_int8(some)
            values = (rounded.values.view(torch.uint8) ^ 128).view(len(some), -1, 4)
            put(self.data.permute(0, 2, 1, 3), begin + at, values)
            put(self.scales, begin + at, rounded.scales)


@dataclass(slots=True)
class Int4Strips:
    """Groups of 16 scales, then nibbles of an integer plus 8, two in a byte: inputs i and i + 4."""

    data: Tensor
    """uint8 [strips, inputs / 32, 32 + 256]"""
    scales: None = None

    def every_other(self, first: int) -> "Int4Strips":
        """Return a view of every other strip."""
        return Int4Strips(self.data[first::2])

    def write(self, begin: int, rows: Part) -> None:
        """Round the rows, and write scales and nibbles."""
        nibbles = self.data[..., SCALES_BYTES:].view(*self.data.shape[:2], GROUP // 8, LANES, 4)
        nibbles = nibbles.permute(0, 3, 1, 2, 4)
        scales = self.data[..., :SCALES_BYTES].view(torch.bfloat16).permute(0, 2, 1)
        for at, some in cut(rows):
            rounded = round_int4(require_plain(some))
            values = (rounded.values + 8).view(torch.uint8).view(len(some), -1, GROUP // 8, 2, 4)
            put(nibbles, begin + at, values[..., 0, :] | values[..., 1, :] << 4)
            # The kernels multiply nibbles in the upper half of a byte.
            put(scales, begin + at, rounded.scales / 16)
