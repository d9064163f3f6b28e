"""Products with rounded weights in plain torch: the definition that the native kernels follow bit for bit.

README.md has the maths. The torch path on CPUs computes with it too, slowly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 32
"""Inputs with one scale: of a row of inputs always, and of weights in INT4."""
SMALLEST = 1e-30
"""A group whose inputs are all smaller counts as zeros: the inverse of its scale may not be finite."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """Rows as whole numbers, and the scales that multiply them."""

    values: Tensor
    """int8 [rows, inputs], the inputs a multiple of GROUP: zeros fill up"""
    scales: Tensor
    """float32 [rows], or one for each group: [rows, inputs / GROUP]"""


def round_int8(weight: Tensor) -> Rounded:
    """Round rows to 255 levels each: the largest of a row is 127 or -127."""
    wide = pad_inputs(weight)
    scales = wide.abs().amax(1, keepdim=True) / 127
    return Rounded(_divide(wide, scales).round().to(torch.int8), scales[:, 0])


def round_int4(weight: Tensor) -> Rounded:
    """Round groups of GROUP inputs to 16 levels each: the largest of a group, whatever its sign, is -8.

    Of the symmetric conventions this has the least error: 8.6 % of the weights' size for normal ones and
    9.2 % for the shipped model's, against 9.7 and 10.4 % with the largest at 7 or -7. Scales have the bits of
    bfloat16.
    """
    groups = _split(weight)
    lowest, highest = torch.aminmax(groups, dim=2, keepdim=True)
    scales = (torch.where(highest > -lowest, highest, lowest) / -8).bfloat16().float()
    values = _divide(groups, scales).round().clamp(-8, 7)
    return Rounded(values.to(torch.int8).flatten(1), scales[..., 0])


def round_inputs(x: Tensor) -> Rounded:
    """Round groups of GROUP inputs to 255 levels each. One with a NaN or an infinity has the scale NaN."""
    groups = _split(x)
    largest = groups.abs().amax(2, keepdim=True)
    is_known, is_zero = largest.isfinite(), largest < SMALLEST
    # torch.div: `127 / largest` is 127 times a rounded inverse, with other bits.
    inverse = torch.where(is_known & ~is_zero, torch.div(torch.tensor(127.0), largest), 0.0)
    values = torch.where(is_known, groups * inverse, 0.0).round()
    scales = torch.where(is_zero, 0.0, torch.where(is_known, largest / 127, torch.nan))
    return Rounded(values.to(torch.int8).flatten(1), scales[..., 0])


def quantized_linear_reference(x: Tensor, weight: Rounded, bias: Tensor | None) -> Tensor:
    """Return x·Wᵀ + b, float32 [rows, outputs], for x rounded by `round_inputs` to the weight's width.

    Sums inside a group are whole numbers below 2²⁴, which float32 products give exactly in any order; what
    groups give is added in their order, with a rounding after every product and sum.
    """
    inputs = round_inputs(x)
    total = torch.zeros((x.shape[0], weight.values.shape[0]), dtype=torch.float32, device=x.device)
    is_grouped = weight.scales.dim() == 2
    for group in range(weight.values.shape[1] // GROUP):
        columns = slice(group * GROUP, (group + 1) * GROUP)
        sums = inputs.values[:, columns].float() @ weight.values[:, columns].float().T
        if is_grouped:
            sums = sums * weight.scales[:, group]
        total = total + sums * inputs.scales[:, group, None]
    if not is_grouped:
        total = total * weight.scales
    return total if bias is None else total + bias.float()


def pad_inputs(rows: Tensor) -> Tensor:
    """Return rows in float32, filled up with zeros to a multiple of GROUP inputs."""
    return functional.pad(rows.float(), (0, -rows.shape[1] % GROUP))


def _split(rows: Tensor) -> Tensor:
    """Return rows [count, inputs] as [count, groups, GROUP]."""
    return pad_inputs(rows).view(rows.shape[0], -1, GROUP)


def _divide(values: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 0.0, values / scales)
