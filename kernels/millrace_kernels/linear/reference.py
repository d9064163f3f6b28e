"""Products with dense and quantised weights in plain torch: the definitions, and the torch path.

The native kernels follow the product with rounded weights bit for bit; on CPUs the torch path computes with
it too, slowly. README.md has the maths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import GROUP
from millrace_kernels.linear.stored import StoredMatrix

MIN_GEMM_ROWS = 16
"""On CPUs the BLAS uses other algorithms for few rows (a matrix-vector product for one), with other bits.
From 8 rows on, a row's bits did not depend on the other rows (tried with float32 and bfloat16, 1 and 2
threads, up to 700 rows). 16 leaves a margin for untried CPUs."""


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x·Wᵀ + b [rows, outputs] for x [rows, inputs] and weight [outputs, inputs], in their type.

    On CPUs a row's bits do not depend on how many rows there are, for one number of threads.
    """
    missing = MIN_GEMM_ROWS - x.shape[0] if weight.device.type == "cpu" else 0
    if missing <= 0:
        return functional.linear(x, weight, bias)
    padded = functional.pad(x, (0, 0, 0, missing))
    return functional.linear(padded, weight, bias)[: x.shape[0]]


_ROWS = 512
"""Outputs widened at once: 8 MB of 4,096 inputs."""


def fp8_linear_reference(x: Tensor, weight: StoredMatrix, bias: Tensor | None) -> Tensor:
    """Return x·Wᵀ + b, float32 [rows, outputs], for W in FP8. Inputs are not rounded; widening W is exact.

    The sums of each group of inputs are multiplied by the group's scale, and added in the groups' order.
    """
    wide, inputs = x.float(), weight.values.shape[1]
    group = weight.group or inputs
    parts = []
    for at in range(0, len(weight), _ROWS):
        some = weight[at : at + _ROWS]
        total = torch.zeros((len(x), len(some)), device=x.device)
        for number, begin in enumerate(range(0, inputs, group)):
            columns = slice(begin, begin + group)
            sums = linear_reference(wide[:, columns], some.values[:, columns].float(), None)
            total = total + sums * some.scales[:, number]
        parts.append(total)
    product = torch.cat(parts, dim=1)
    return product if bias is None else product + bias.float()


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


def quantized_linear_reference(x: Tensor, weight: Rounded, bias: Tensor | None) -> Tensor:
    """Return x·Wᵀ + b, float32 [rows, outputs], for x rounded by `round_inputs` to the weight's width.

    Sums inside a group are integers below 2²⁴, which float32 computes exactly in any order. The groups'
    results are added in their order, with a rounding after every product and sum. A zero point is part of the
    exact sum.
    """
    inputs = round_inputs(x)
    total = torch.zeros((x.shape[0], weight.values.shape[0]), dtype=torch.float32, device=x.device)
    is_grouped = weight.scales.dim() == 2
    for group in range(inputs.values.shape[1] // GROUP):
        columns, its = slice(group * GROUP, (group + 1) * GROUP), group * GROUP // weight.group
        some = inputs.values[:, columns].float()
        sums = some @ weight.values[:, columns].float().T
        if weight.zeros is not None:
            sums = sums - some.sum(1, keepdim=True) * weight.zeros[:, its].float()
        if is_grouped:
            sums = sums * weight.scales[:, its]
        total = total + sums * inputs.scales[:, group, None]
    if not is_grouped:
        total = total * weight.scales
    return total if bias is None else total + bias.float()


def pad_inputs(rows: Tensor) -> Tensor:
    """Return rows in float32, padded with zeros to a multiple of GROUP inputs."""
    return functional.pad(rows.float(), (0, -rows.shape[1] % GROUP))


def _split(rows: Tensor) -> Tensor:
    """Return rows [count, inputs] as [count, groups, GROUP]."""
    return pad_inputs(rows).view(rows.shape[0], -1, GROUP)


def _divide(values: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 0.0, values / scales)
