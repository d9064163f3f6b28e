"""Products with dense and quantised weights in plain torch: the definitions, and the torch path.

The native kernels follow the product with rounded weights bit for bit; on CPUs the torch path computes with
it too, slowly. README.md has the maths.
"""

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import GROUP
from millrace_kernels.linear.rounding import Rounded, round_inputs
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
