"""The products on GPUs with a quantised matrix, in plain torch: the definition."""

from typing import NamedTuple

import torch
from torch import Tensor

from millrace_kernels.linear.format import Number
from millrace_kernels.linear.gpu.choice import Product
from millrace_kernels.linear.gpu.matrix import LEVELS, GpuMatrix
from millrace_kernels.linear.rounding import SMALLEST

LARGEST_FP8, LARGEST_INT8 = 448.0, 127.0


class RoundedInputs(NamedTuple):
    """Inputs in 8 bits."""

    codes: Tensor
    """[rows, inputs] float8_e4m3fn or int8"""
    scales: Tensor
    """float32 [rows, 1]"""

    def widen(self) -> Tensor:
        """Return the inputs that they stand for, float32 [rows, inputs]."""
        return self.codes.float() * self.scales


def round_inputs_reference(x: Tensor, dtype: torch.dtype) -> RoundedInputs:
    """Round each row [rows, inputs] to `dtype`, its largest to the type's largest.

    Rounding is to the nearest, ties to even. A row with a NaN or an infinity has a scale of NaN.
    """
    wide = x.float()
    largest = wide.abs().amax(1, keepdim=True)
    limit = torch.tensor(LARGEST_INT8 if dtype == torch.int8 else LARGEST_FP8, device=x.device)
    is_known = largest.isfinite()
    inverse = torch.where(is_known & (largest >= SMALLEST), torch.div(limit, largest), 0.0)
    values = torch.where(is_known, wide * inverse, 0.0)
    codes = values.round().to(torch.int8) if dtype == torch.int8 else values.to(dtype)
    scales = torch.where(is_known, torch.where(largest < SMALLEST, 0.0, largest / limit), torch.nan)
    return RoundedInputs(codes, scales)


def widen_reference(matrix: GpuMatrix) -> Tensor:
    """Return the weights by their definition, float32 [outputs, inputs], inputs in the columns' order."""
    codes, group = _numbers(matrix), matrix.form.group or matrix.inputs

    def spread(one: Tensor) -> Tensor:
        return one.t().repeat_interleave(group, 1)[:, : matrix.inputs]

    if matrix.zeros is not None:
        codes = codes - spread(matrix.zeros.float()) * (LEVELS if matrix.form.number is Number.INT4 else 1)
    return codes * spread(matrix.scales)


def _numbers(matrix: GpuMatrix) -> Tensor:
    """Return the codes as float32 [outputs, inputs]: in INT4 sixteen times as large."""
    if matrix.form.number is not Number.INT4:
        return matrix.codes.float()
    low, high = matrix.codes << 4, matrix.codes & -LEVELS
    return torch.cat((low, high), dim=2).float().transpose(0, 1).flatten(1)[:, : matrix.inputs]


def gpu_product_reference(x: Tensor, matrix: GpuMatrix, product: Product) -> Tensor:
    """Return x·Wᵀ + b, float32 [rows, outputs], with the inputs as the product has them."""
    ordered = matrix.arrange(x)
    match product:
        case Product.SCALED:
            inputs = round_inputs_reference(ordered, torch.float8_e4m3fn).widen()
        case Product.INTEGERS:
            inputs = round_inputs_reference(ordered, torch.int8).widen()
        case Product.DIRECT | Product.WIDENED:
            inputs = ordered.float()
    total = inputs @ widen_reference(matrix).t()
    return total if matrix.bias is None else total + matrix.bias.float()
