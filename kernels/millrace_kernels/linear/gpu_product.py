"""Products with quantised matrices on GPUs. No launch waits for the device, and none hangs on its numbers."""

from collections.abc import Hashable
from typing import Final

import torch
from torch import Tensor

from millrace_kernels.linear.gpu import linear_add
from millrace_kernels.linear.gpu_choice import WIDENED_ROWS, Product, choose_product
from millrace_kernels.linear.gpu_matrix import GpuMatrix
from millrace_kernels.linear.triton_round import round_inputs, scale_sums
from millrace_kernels.linear.triton_widen import widen
from millrace_kernels.linear.triton_widened import FEWEST_ROWS, SOME_ROWS, widened_product

EACH_WAY: Final = (1, FEWEST_ROWS + 1, SOME_ROWS + 1, WIDENED_ROWS + 1)
"""Rows that take each tile and each product: a shape's first product compiles them all. Otherwise a replica's
later steps would compile, while it serves."""
_compiled: Final[set[Hashable]] = set()
WIDENED_BYTES: Final = 128 << 20
"""Of a weight's outputs that are widened at once, at most."""


def multiply_on_gpu(
    x: Tensor, matrix: GpuMatrix, residual: Tensor | None = None, *, wide: bool = False
) -> Tensor:
    """Return x·Wᵀ + b [rows, outputs] in x's type, or as unrounded float32 sums if `wide`.

    With a residual [rows, outputs], which isn't `wide`, add the product in its place, and return it.
    """
    shape = (matrix.form, matrix.outputs, matrix.inputs, matrix.bias is None, matrix.order is None)
    kind = (shape, residual is None, wide, x.dtype, x.device)
    if x.is_cuda and kind not in _compiled:
        _compiled.add(kind)
        for rows in EACH_WAY[:-1] if wide else EACH_WAY:
            added = None if residual is None else residual.new_zeros((rows, matrix.outputs))
            _multiply(x.new_zeros((rows, matrix.inputs)), matrix, added, wide=wide)
    return _multiply(x, matrix, residual, wide=wide)


def _multiply(x: Tensor, matrix: GpuMatrix, residual: Tensor | None, *, wide: bool) -> Tensor:
    ordered = matrix.arrange(x)
    if wide:
        return widened_product(ordered, matrix, dtype=torch.float32)
    match choose(x, matrix):
        case Product.DIRECT:
            return widened_product(ordered, matrix, residual)
        case Product.WIDENED:
            return _multiply_widened(ordered, matrix, residual)
        case Product.SCALED:
            return _multiply_scaled(ordered, matrix, residual)
        case Product.INTEGERS:
            return _multiply_integers(ordered, matrix, residual)


def choose(x: Tensor, matrix: GpuMatrix) -> Product:
    """Return the product of rows [rows, inputs] with a matrix."""
    shape = (matrix.outputs, matrix.inputs)
    may_round = matrix.may_round_inputs
    return choose_product(matrix.form, *shape, len(x), x.dtype, matrix.capability, may_round=may_round)


def _multiply_widened(x: Tensor, matrix: GpuMatrix, residual: Tensor | None) -> Tensor:
    """Widen some outputs, multiply them as a dense matrix, and go on with the next ones."""
    total = residual
    if total is None:
        total = torch.empty((len(x), matrix.outputs), dtype=x.dtype, device=x.device)
    at_once = max(1, WIDENED_BYTES // (matrix.inputs * x.itemsize))
    for begin in range(0, matrix.outputs, at_once):
        rows = slice(begin, min(begin + at_once, matrix.outputs))
        weight, bias = widen(matrix, rows, x.dtype), None if matrix.bias is None else matrix.bias[rows]
        if residual is not None:
            linear_add(x, weight, bias, total[:, rows])
        elif bias is None:
            torch.mm(x, weight.t(), out=total[:, rows])
        else:
            torch.addmm(bias, x, weight.t(), out=total[:, rows])
    return total


def _multiply_scaled(x: Tensor, matrix: GpuMatrix, residual: Tensor | None) -> Tensor:
    inputs = round_inputs(x, torch.float8_e4m3fn)
    # With fast accumulation sums have fewer bits than float32, and far more than the rounded inputs' four.
    product = torch._scaled_mm(  # noqa: SLF001  torch has no other name for it
        inputs.codes,
        matrix.codes.t(),
        scale_a=inputs.scales,
        scale_b=matrix.scales,
        out_dtype=x.dtype,
        use_fast_accum=True,
    )
    if matrix.bias is not None:
        product += matrix.bias
    return product if residual is None else residual.add_(product)


def _multiply_integers(x: Tensor, matrix: GpuMatrix, residual: Tensor | None) -> Tensor:
    inputs = round_inputs(x, torch.int8)
    sums = torch._int_mm(inputs.codes, matrix.codes.t())  # noqa: SLF001  torch has no other name for it
    output = residual
    if output is None:
        output = torch.empty((len(x), matrix.outputs), dtype=x.dtype, device=x.device)
    return scale_sums(sums, inputs.scales, matrix.scales, matrix.bias, output, adds=residual is not None)
