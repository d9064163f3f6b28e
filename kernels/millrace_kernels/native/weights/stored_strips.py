"""Writes a checkpoint's 4-bit integers and 8-bit floats as strips of 16 outputs, laid out as in README.md.

Both are moved four at a time, as one integer of 32 bits: bytes by themselves took three times as long.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import GROUP, Format, Number
from millrace_kernels.linear.rounding import keep_rounded
from millrace_kernels.native.abi import LANES
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.weights.lanes import Allocate, cut, put
from millrace_kernels.weights import Part, require_stored

GROUPS = {Number.INT4: (128, 64, 32), Number.FP8: (128, 64, 32, 16)}
"""The groups that products read, the longest first."""
SCALES_BYTES = 4 * LANES
_NIBBLES, _SIGNS = 0x0F0F0F0F, -0x77777778
_MAGNITUDES, _ONES, _HIGHEST, _SECOND = 0x7F7F7F7F, 0x01010101, -0x7F7F7F80, 0xFF00


def fit_form(form: Format) -> Format:
    """Return the format in which products read a checkpoint's matrix. Raises RecordError if none do.

    A longer group is cut into groups with the same scale. So is a whole row of 4-bit integers.
    """
    is_whole = form.group is None and form.number is Number.FP8
    if form in Format.OF_PACKERS or (is_whole and not form.has_zeros):
        return form
    fitting = [one for one in GROUPS.get(form.number, ()) if form.group is None or form.group % one == 0]
    if not fitting or (form.has_zeros and form.number is not Number.INT4):
        raise RecordError(
            f"a matrix in {form} has no native product: there are some for INT4 in groups of 32, 64 or 128, "
            "FP8 in groups of 16 to 128, and INT8 and FP8 with a scale for each output"
        )
    return replace(form, group=fitting[0])


@dataclass(slots=True)
class Int4GroupStrips:
    """Groups of 16 scales, 16 zero points plus 8 if it has some, and nibbles as `Int4Strips` has them."""

    form: Format
    data: Tensor
    """uint8 [strips, groups, bytes of a group]"""
    scales: None = None

    @classmethod
    def allocate(cls, allocate: Allocate, form: Format, count: int, inputs: int) -> "Int4GroupStrips":
        """Return `count` strips of zeros."""
        group = _group_of(form)
        num_bytes = SCALES_BYTES + LANES * form.has_zeros + group // 2 * LANES
        groups = -(-inputs // group)
        return cls(form, allocate(count * groups * num_bytes).view(count, groups, num_bytes))

    def every_other(self, first: int) -> "Int4GroupStrips":
        """Return a view of every other strip."""
        return replace(self, data=self.data[first::2])

    def write(self, begin: int, rows: Part) -> None:
        """Write scales, zero points and nibbles."""
        group = _group_of(self.form)
        head = self.data.shape[2] - group // 2 * LANES
        scales = self.data[..., :SCALES_BYTES].view(torch.float32).permute(0, 2, 1)
        zeros = self.data[..., SCALES_BYTES:head].permute(0, 2, 1)
        nibbles = _by_lanes(self.data[..., head:])
        for at, some in cut(require_stored(rows)):
            rounded = keep_rounded(some.with_group(group))
            put(nibbles, begin + at, _join_nibbles(rounded.values).view(len(some), -1, group // 8))
            # The kernels multiply nibbles in the upper half of a byte.
            put(scales, begin + at, rounded.scales / 16)
            if rounded.zeros is not None:
                put(zeros, begin + at, (rounded.zeros + 8).view(torch.uint8))


@dataclass(slots=True)
class Fp8Strips:
    """Bytes of floats, of each four inputs in the order 0, 2, 1, 3; in groups after their 16 scales.

    A NaN is kept as the scale of its group: the kernels widen it to a number.
    """

    form: Format
    data: Tensor
    """uint8 [strips, groups, bytes of a group]; without groups one for all inputs"""
    scales: Tensor | None
    """float32 [strips, 16] without groups"""

    @classmethod
    def allocate(cls, allocate: Allocate, form: Format, count: int, inputs: int) -> "Fp8Strips":
        """Return `count` strips of zeros."""
        if form.group is not None:
            num_bytes, groups = SCALES_BYTES + form.group * LANES, -(-inputs // form.group)
            return cls(form, allocate(count * groups * num_bytes).view(count, groups, num_bytes), None)
        data = allocate(count * -(-inputs // 4) * 4 * LANES).view(count, 1, -1)
        return cls(form, data, allocate(count * SCALES_BYTES).view(torch.float32).view(count, LANES))

    def every_other(self, first: int) -> "Fp8Strips":
        """Return a view of every other strip."""
        scales = None if self.scales is None else self.scales[first::2]
        return replace(self, data=self.data[first::2], scales=scales)

    def write(self, begin: int, rows: Part) -> None:
        """Write scales and bytes."""
        stored, head = require_stored(rows), SCALES_BYTES if self.scales is None else 0
        group = self.form.group or -(-stored.shape[1] // 4) * 4
        scales = self.scales
        if scales is None:
            scales = self.data[..., :head].view(torch.float32).permute(0, 2, 1)
        numbers = _by_lanes(self.data[..., head:])
        for at, some in cut(stored):
            its = some if self.form.group is None else some.with_group(group)
            fours = functional.pad(its.values.view(torch.int8), (0, -stored.shape[1] % group)).view(
                torch.int32
            )
            fours = fours.view(len(some), -1, group // 4)
            put(numbers, begin + at, _swap_middle(fours))
            found = _mark_nan(fours, its.scales)
            put(scales, begin + at, found if self.scales is None else found[:, 0])


def _group_of(form: Format) -> int:
    assert form.group is not None, f"{form} has no groups"
    assert form.group % GROUP == 0, f"{form} in a format of integers"
    return form.group


def _by_lanes(numbers: Tensor) -> Tensor:
    """Return a view of strips' bytes [strips, groups, …] by output: int32 [strips, 16, groups, fours]."""
    fours = numbers.view(torch.int32)
    return fours.view(*fours.shape[:2], -1, LANES).permute(0, 3, 1, 2)


def _join_nibbles(values: Tensor) -> Tensor:
    """Return int8 [rows, inputs] of -8 to 7 as nibbles plus 8: eight in an int32, i and i + 4 in a byte."""
    fours = values.view(torch.int32).view(len(values), -1, 2) & _NIBBLES
    return (fours[..., 0] | fours[..., 1] << 4) ^ _SIGNS


def _swap_middle(fours: Tensor) -> Tensor:
    """Return fours of bytes with the second and the third in each other's place."""
    changed = (fours ^ (fours >> 8)) & _SECOND
    return fours ^ changed ^ (changed << 8)


def _mark_nan(fours: Tensor, scales: Tensor) -> Tensor:
    """Return the scales [rows, groups], NaN of each group that has one among its fours [rows, groups, …]."""
    is_nan = ((fours & _MAGNITUDES) + _ONES) & _HIGHEST
    return torch.where((is_nan != 0).any(2), torch.nan, scales) if is_nan.any() else scales
