"""Products with quantised matrices as one operation, with inputs and shapes."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.arena import Arena
from benchmarks.gpu.inputs import Call
from benchmarks.gpu.rounding import FORMS, round_weight
from benchmarks.gpu.weights import STAND_IN
from millrace_kernels.linear.gpu.choice import choose_product
from millrace_kernels.linear.gpu.matrix import GpuMatrix, find_capability, pack_for_gpu
from millrace_kernels.linear.gpu.reference import gpu_product_reference
from millrace_kernels.tensor_matrices import multiply_packed

FEW_ROWS = 16
"""Up to so many rows, a row has the same bits alone."""
REAL: tuple[dict[str, Any], ...] = (
    *(
        {"form": form, "rows": rows, "inputs": inputs, "outputs": outputs}
        for form in FORMS
        for rows, inputs, outputs in (
            (1, 4096, 6144),
            (16, 14336, 4096),
            (67, 4096, 4096),
            (129, 4096, 4096),
            (1001, 14336, 4096),
            (1500, 4096, 1024),
        )
    ),
    *({"form": form, "rows": 33, "inputs": 200, "outputs": 72} for form in FORMS),
)
DRY: tuple[dict[str, Any], ...] = tuple(
    {"form": form, "rows": rows, "inputs": 96, "outputs": 48} for form in FORMS for rows in (3, 65)
)


def pack(weight: Tensor, form: str) -> GpuMatrix:
    """Return weights [outputs, inputs] as their device has them; a CPU stands in for a GPU."""
    capability = find_capability(weight.device) or STAND_IN
    return pack_for_gpu([round_weight(weight, FORMS[form])], len(weight), None, weight.device, capability)


def make_quantized(  # noqa: PLR0917  as the shapes name them
    arena: Arena, dtype: torch.dtype, form: str, rows: int, inputs: int, outputs: int
) -> Call:
    """Make a product whose sums are about one, and a residual."""
    matrix = pack(arena.normal((outputs, inputs), torch.float32, scale=inputs**-0.5), form)
    codes = arena.copy(matrix.codes.view(torch.int8)).view(matrix.codes.dtype)  # 8-bit floats can't be copied
    zeros = None if matrix.zeros is None else arena.copy(matrix.zeros)
    bias = arena.normal((outputs,), dtype)
    kept = replace(matrix, codes=codes, scales=arena.copy(matrix.scales), zeros=zeros, bias=bias)
    x, residual = arena.normal((rows, inputs), dtype), arena.normal((rows, outputs), dtype)
    tensors = tuple(getattr(kept, field.name) for field in fields(kept))
    num_rows = rows if rows <= FEW_ROWS else 1  # of more rows, bits are not compared
    return Call((x, residual, kept, tensors), num_rows=num_rows)


def pick_quantized(call: Call, row: int) -> Call:
    """Return the call for one row alone."""
    x, residual, *others = call.arguments
    return Call((x[row : row + 1], residual[row : row + 1], *others))


def multiply(x: Tensor, residual: Tensor, matrix: GpuMatrix, _: Any) -> Tensor:
    """Add the product to a copy of the residual, as a step on a GPU adds it."""
    return multiply_packed(x, matrix, residual.clone())


def multiply_reference(x: Tensor, residual: Tensor, matrix: GpuMatrix, _: Any) -> Tensor:
    """Add the product in plain torch, with inputs rounded as the product has them."""
    shape, may_round = (matrix.outputs, matrix.inputs), matrix.may_round_inputs
    product = choose_product(matrix.form, *shape, len(x), x.dtype, matrix.capability, may_round=may_round)
    return (residual.float() + gpu_product_reference(x, matrix, product)).to(x.dtype)
