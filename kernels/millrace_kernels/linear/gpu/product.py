"""Products on GPUs: with dense matrices by the device's BLAS, with quantised ones as `choice.py` decides.

No launch waits for the device, and none depends on its numbers.
"""

from collections.abc import Hashable, Iterator
from typing import Final

import torch
from torch import Tensor

from millrace_kernels.linear.gpu.choice import WIDENED_ROWS, Product, choose_product
from millrace_kernels.linear.gpu.matrix import GpuMatrix
from millrace_kernels.linear.gpu.triton_round import round_inputs, scale_sums
from millrace_kernels.linear.gpu.triton_widen import widen
from millrace_kernels.linear.gpu.triton_widened import FEWEST_ROWS, SOME_ROWS, widened_product

EACH_WAY: Final = (1, FEWEST_ROWS + 1, SOME_ROWS + 1, WIDENED_ROWS + 1)
"""Rows that take each tile and each product: a shape's first product compiles them all. Otherwise a replica's
later steps would compile, while it serves."""
_compiled: Final[set[Hashable]] = set()
SLICE_BYTES: Final = 128 << 20
"""Of the outputs that are widened, or whose whole sums are kept, at once, at most."""
ALIGNMENT: Final = 128
"""Outputs of a slice are a multiple of so many: the BLAS reads misaligned memory by slower kernels."""


def multiply_on_gpu(
    x: Tensor, matrix: GpuMatrix, residual: Tensor | None = None, *, wide: bool = False
) -> Tensor:
    """Return x·Wᵀ + b [rows, outputs] in x's type, or as unrounded float32 sums if `wide`.

    With a residual [rows, outputs], which isn't `wide`, add the product in its place, and return it.
    """
    shape = (matrix.form, matrix.outputs, matrix.inputs, matrix.bias is None, matrix.order is None)
    kind = (shape, residual is None, wide, x.dtype, x.device)
    if x.is_cuda and kind not in _compiled:
        for rows in EACH_WAY[:-1] if wide else EACH_WAY:
            added = None if residual is None else residual.new_zeros((rows, matrix.outputs))
            _multiply(x.new_zeros((rows, matrix.inputs)), matrix, added, wide=wide)
        _compiled.add(kind)
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
    total, adds = residual, residual is not None
    if total is None:
        total = torch.empty((len(x), matrix.outputs), dtype=x.dtype, device=x.device)
    for rows in _cut_outputs(matrix.outputs, matrix.inputs * x.itemsize):
        _multiply_slice(x, widen(matrix, rows, x.dtype), _cut_bias(matrix, rows), total[:, rows], adds=adds)
    return total


def _multiply_slice(x: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor, *, adds: bool) -> None:
    """Write x·Wᵀ + b to the outputs, or add it."""
    if adds:
        linear_add(x, weight, bias, output)
    elif bias is None:
        torch.mm(x, weight.t(), out=output)
    else:
        torch.addmm(bias, x, weight.t(), out=output)


def _cut_bias(matrix: GpuMatrix, rows: slice) -> Tensor | None:
    return None if matrix.bias is None else matrix.bias[rows]


def _multiply_scaled(x: Tensor, matrix: GpuMatrix, residual: Tensor | None) -> Tensor:
    inputs = round_inputs(x, torch.float8_e4m3fn)
    # With fast accumulation sums have fewer bits than float32, and far more than the rounded inputs' four.
    product = torch._scaled_mm(  # noqa: SLF001  torch has no other name for it
        inputs.codes,
        matrix.codes.t(),
        scale_a=inputs.scales,
        scale_b=matrix.scales,
        bias=matrix.bias,
        out_dtype=x.dtype,
        use_fast_accum=True,
    )
    return product if residual is None else residual.add_(product)


def _multiply_integers(x: Tensor, matrix: GpuMatrix, residual: Tensor | None) -> Tensor:
    inputs = round_inputs(x, torch.int8)
    output = residual
    if output is None:
        output = torch.empty((len(x), matrix.outputs), dtype=x.dtype, device=x.device)
    for rows in _cut_outputs(matrix.outputs, len(x) * torch.int32.itemsize):
        # No name for the sums: it would keep them while the next ones are summed.
        scale_sums(
            torch._int_mm(inputs.codes, matrix.codes[rows].t()),  # noqa: SLF001  torch has no other name for it
            inputs.scales,
            matrix.scales[:, rows],
            _cut_bias(matrix, rows),
            output[:, rows],
            adds=residual is not None,
        )
    return output


def _cut_outputs(outputs: int, output_bytes: int) -> Iterator[slice]:
    """Yield slices of the outputs that take up to SLICE_BYTES, if each takes `output_bytes`."""
    at_once = max(ALIGNMENT, SLICE_BYTES // output_bytes // ALIGNMENT * ALIGNMENT)
    for begin in range(0, outputs, at_once):
        yield slice(begin, min(begin + at_once, outputs))


def keep_sums_in_float32() -> None:
    """Make this process's BLAS sum bfloat16 products in float32, even if it splits a product.

    Otherwise it may round the parts of a split to bfloat16, which it does for steps of few rows.
    """
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Add x·Wᵀ + b to the residual [rows, outputs], in place, and return it. Shapes as in `linear_reference`.

    The BLAS adds the product before it rounds, without a launch of its own for the addition.
    """
    if bias is not None:
        residual += bias
    return torch.addmm(residual, x, weight.t(), out=residual)
