"""Matrices as torch has them, dense or quantised, and their products: for the torch path and for GPUs."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import GROUP, Format, Number
from millrace_kernels.linear.gpu.matrix import GpuMatrix
from millrace_kernels.linear.reference import (
    fp8_linear_reference,
    linear_reference,
    quantized_linear_reference,
)
from millrace_kernels.linear.rounding import Rounded, keep_rounded, round_int4, round_int8
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.weights import Matrix, SideBySide

_HEAD_ROWS = 512
"""Of a head, widened at once: 4 MB of 2,048 columns."""


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """A weight as one tensor."""

    weight: Tensor
    """[outputs, inputs]"""
    bias: Tensor | None

    @property
    def inputs(self) -> int:
        """Columns of the weight."""
        return self.weight.shape[1]

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.weight.shape[0]

    def cut(self, rows: slice) -> "DenseMatrix":
        """Return some rows."""
        return DenseMatrix(self.weight[rows], _cut(self.bias, rows))


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """A weight in integers and scales, whose inputs are rounded too: small and slow."""

    weight: Rounded
    bias: Tensor | None
    inputs: int
    dtype: torch.dtype
    """The type of an embedding's rows."""
    order: Tensor | None = None
    """int64 [inputs]: the input that each column multiplies; None: as they come."""

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.weight.values.shape[0]

    def cut(self, rows: slice) -> "RoundedMatrix":
        """Return some rows."""
        return RoundedMatrix(self.weight[rows], _cut(self.bias, rows), self.inputs, self.dtype, self.order)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A weight in 8-bit floats, widened in the product."""

    weight: StoredMatrix
    bias: Tensor | None

    @property
    def inputs(self) -> int:
        """Columns of the weight."""
        return self.weight.shape[1]

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.weight.shape[0]

    def cut(self, rows: slice) -> "Fp8Matrix":
        """Return some rows."""
        return Fp8Matrix(self.weight[rows], _cut(self.bias, rows))


TensorMatrix = DenseMatrix | RoundedMatrix | Fp8Matrix | GpuMatrix


def keep_stored(weight: StoredMatrix, bias: Tensor | None, dtype: torch.dtype) -> TensorMatrix:
    """Return a checkpoint's quantised matrix, in its own numbers."""
    if weight.number is Number.FP8:
        return Fp8Matrix(weight, bias)
    return RoundedMatrix(keep_rounded(weight), bias, weight.shape[1], dtype, weight.order)


def round_parts(form: Format, parts: Iterable[Tensor], outputs: int, inputs: int) -> Rounded:
    """Round plain numbers to INT8 or INT4 as a packer does, one part below the other."""
    groups = -(-inputs // GROUP)
    values = torch.empty((outputs, groups * GROUP), dtype=torch.int8)
    scales = torch.empty((outputs, groups) if form == Format.INT4 else (outputs,))
    begin = 0
    for part in parts:
        rounded = round_int4(part) if form == Format.INT4 else round_int8(part)
        end = begin + part.shape[0]
        values[begin:end], scales[begin:end], begin = rounded.values, rounded.scales, end
    return Rounded(values, scales)


@dataclass(frozen=True, slots=True)
class TensorExperts:
    """The matrices of experts, one below the other."""

    matrix: TensorMatrix
    num_experts: int

    @property
    def inputs(self) -> int:
        """Columns of each matrix."""
        return self.matrix.inputs

    @property
    def outputs(self) -> int:
        """Rows of each matrix."""
        return self.matrix.outputs // self.num_experts

    @property
    def stacked(self) -> Tensor:
        """Dense matrices as one tensor, [experts, outputs, inputs]."""
        return _dense(self.matrix).weight.view(self.num_experts, self.outputs, self.inputs)

    @property
    def biases(self) -> Tensor | None:
        """[experts, outputs]"""
        return None if self.matrix.bias is None else self.matrix.bias.view(self.num_experts, self.outputs)

    def multiply(self, expert: int, x: Tensor) -> Tensor:
        """Multiply rows with one of the matrices: on CPUs."""
        assert not isinstance(self.matrix, GpuMatrix), "experts packed for GPUs"
        return multiply(x, self.matrix.cut(slice(expert * self.outputs, (expert + 1) * self.outputs)))


def look_up(table: Matrix, tokens: Tensor) -> Tensor:
    """Return the tokens' rows of a table."""
    if not isinstance(table, RoundedMatrix):
        return functional.embedding(tokens, _dense(table).weight)
    values = table.weight.values[tokens, : table.inputs]
    return (values * table.weight.scales[tokens, None]).to(table.dtype)


def multiply(x: Tensor, matrix: Matrix) -> Tensor:
    """Return the product. On CPUs it is float32 where the weight, or a part of it, is quantised."""
    if isinstance(matrix, SideBySide):
        return torch.cat([multiply(x, part) for part in matrix.parts], dim=-1)
    if isinstance(matrix, RoundedMatrix):
        ordered = x if matrix.order is None else x[:, matrix.order]
        return quantized_linear_reference(ordered, matrix.weight, matrix.bias)
    if isinstance(matrix, Fp8Matrix):
        return fp8_linear_reference(x, matrix.weight, matrix.bias)
    if isinstance(matrix, GpuMatrix):
        return multiply_packed(x, matrix)
    dense = _dense(matrix)
    return linear_reference(x, dense.weight, dense.bias)


def multiply_packed(
    x: Tensor, matrix: GpuMatrix, residual: Tensor | None = None, *, wide: bool = False
) -> Tensor:
    """Multiply with a matrix that is packed for GPUs, as `multiply_on_gpu` says."""
    from millrace_kernels.linear.gpu.product import multiply_on_gpu  # noqa: PLC0415  triton: only on GPUs

    return multiply_on_gpu(x, matrix, residual, wide=wide)


def multiply_wide(x: Tensor, matrix: Matrix) -> Tensor:
    """Return the product in float32. Rounded to bfloat16, 3 to 7 % of random rows tie at their maximum."""
    if isinstance(matrix, SideBySide):
        return torch.cat([multiply_wide(x, part) for part in matrix.parts], dim=-1)
    if isinstance(matrix, GpuMatrix):
        return multiply_packed(x, matrix, wide=True)
    if x.dtype == torch.float32 or not isinstance(matrix, DenseMatrix):
        return multiply(x, matrix).float()
    if x.is_cuda:
        product = torch.mm(x, matrix.weight.t(), out_dtype=torch.float32)
    else:  # torch has no such product on CPUs. By slices, as a whole copy of the weight would be gigabytes.
        wide, weight = x.float(), matrix.weight
        begins = range(0, len(weight), _HEAD_ROWS)
        product = torch.cat(
            [linear_reference(wide, weight[at : at + _HEAD_ROWS].float(), None) for at in begins], dim=-1
        )
    return product if matrix.bias is None else product + matrix.bias.float()


def _cut(bias: Tensor | None, rows: slice) -> Tensor | None:
    return None if bias is None else bias[rows]


def _dense(matrix: Matrix) -> DenseMatrix:
    assert isinstance(matrix, DenseMatrix), "a matrix packed for another path"
    return matrix
