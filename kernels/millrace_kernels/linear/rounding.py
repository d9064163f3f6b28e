"""Rounds dense weights and inputs to 8 and 4 bits, for the quantised products. README.md has the maths."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import GROUP
from millrace_kernels.linear.stored import StoredMatrix

SMALLEST = 1e-30
"""A group of only smaller inputs counts as zeros: the inverse of its scale might not be finite."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """Rows as integers with their scales."""

    values: Tensor
    """int8 [rows, inputs], the inputs padded with zeros to a multiple of GROUP"""
    scales: Tensor
    """float32 [rows], or one for each group: [rows, inputs / group]"""
    group: int = GROUP
    """Inputs with one scale, a multiple of GROUP."""
    zeros: Tensor | None = None
    """int8 [rows, inputs / group]: subtracted from the group's values; None: all are 0."""

    def __getitem__(self, rows: slice) -> "Rounded":
        zeros = None if self.zeros is None else self.zeros[rows]
        return Rounded(self.values[rows], self.scales[rows], self.group, zeros)


def keep_rounded(stored: StoredMatrix) -> Rounded:
    """Return a checkpoint's integers as they are.

    The weights of groups with a scale below SMALLEST count as zeros. Raises ValueError unless groups are of a
    multiple of GROUP inputs.
    """
    group = stored.group or GROUP
    if group % GROUP:
        raise ValueError(f"groups of {group} inputs have no product: multiples of {GROUP} have one")
    values = functional.pad(stored.values, (0, -stored.values.shape[1] % group))
    if stored.group is None:
        return Rounded(values, stored.scales[:, 0])
    # The native path keeps sixteenths of scales, which must be exact.
    scales = torch.where(stored.scales.abs() < SMALLEST, 0.0, stored.scales)
    return Rounded(values, scales, group, stored.zeros)


def round_int8(weight: Tensor) -> Rounded:
    """Round each row to 255 levels: its largest value becomes 127 or -127."""
    wide = pad_inputs(weight)
    scales = wide.abs().amax(1, keepdim=True) / 127
    return Rounded(_divide(wide, scales).round().to(torch.int8), scales[:, 0])


def round_int4(weight: Tensor) -> Rounded:
    """Round each group of GROUP inputs to 16 levels: its largest value by size, of either sign, becomes -8.

    This has the smallest error of the symmetric conventions: 8.6 % of the weights' size for normally
    distributed ones and 9.2 % for the shipped model's, against 9.7 and 10.4 % with the largest at 7 or -7.
    Scales are bfloat16 values.
    """
    groups = _split(weight)
    lowest, highest = torch.aminmax(groups, dim=2, keepdim=True)
    scales = (torch.where(highest > -lowest, highest, lowest) / -8).bfloat16().float()
    values = _divide(groups, scales).round().clamp(-8, 7)
    return Rounded(values.to(torch.int8).flatten(1), scales[..., 0])


def round_inputs(x: Tensor) -> Rounded:
    """Round each group of GROUP inputs to 255 levels. A NaN or an infinity makes its group's scale NaN."""
    groups = _split(x)
    largest = groups.abs().amax(2, keepdim=True)
    is_known, is_zero = largest.isfinite(), largest < SMALLEST
    # torch.div, because `127 / largest` is 127 times a rounded inverse: other bits.
    inverse = torch.where(is_known & ~is_zero, torch.div(torch.tensor(127.0), largest), 0.0)
    values = torch.where(is_known, groups * inverse, 0.0).round()
    scales = torch.where(is_zero, 0.0, torch.where(is_known, largest / 127, torch.nan))
    return Rounded(values.to(torch.int8).flatten(1), scales[..., 0])


def pad_inputs(rows: Tensor) -> Tensor:
    """Return rows in float32, padded with zeros to a multiple of GROUP inputs."""
    return functional.pad(rows.float(), (0, -rows.shape[1] % GROUP))


def _split(rows: Tensor) -> Tensor:
    """Return rows [count, inputs] as [count, groups, GROUP]."""
    return pad_inputs(rows).view(rows.shape[0], -1, GROUP)


def _divide(values: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 0.0, values / scales)
