"""Matrices as torch has them, dense or rounded, and their products: for the torch path and for GPUs."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.quantized_reference import Rounded, quantized_linear_reference
from millrace_kernels.linear.reference import linear_reference
from millrace_kernels.step import Matrix, SideBySide

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


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """A weight in integers and scales: small and slow."""

    weight: Rounded
    bias: Tensor | None
    inputs: int
    dtype: torch.dtype
    """The type of an embedding's rows."""

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.weight.values.shape[0]


@dataclass(frozen=True, slots=True)
class TensorExperts:
    """The matrices of experts, one below the other."""

    matrix: DenseMatrix | RoundedMatrix
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

    def multiply(self, expert: int, x: Tensor) -> Tensor:
        """Multiply rows with one of the matrices."""
        rows, matrix = slice(expert * self.outputs, (expert + 1) * self.outputs), self.matrix
        if isinstance(matrix, DenseMatrix):
            return multiply(x, DenseMatrix(matrix.weight[rows], None))
        own = Rounded(matrix.weight.values[rows], matrix.weight.scales[rows])
        return multiply(x, RoundedMatrix(own, None, matrix.inputs, matrix.dtype))


def look_up(table: Matrix, tokens: Tensor) -> Tensor:
    """Return the tokens' rows of a table."""
    if not isinstance(table, RoundedMatrix):
        return functional.embedding(tokens, _dense(table).weight)
    values = table.weight.values[tokens, : table.inputs]
    return (values * table.weight.scales[tokens, None]).to(table.dtype)


def multiply(x: Tensor, matrix: Matrix) -> Tensor:
    """Return the product. It is float32 where the weight, or a part of it, is rounded."""
    if isinstance(matrix, SideBySide):
        return torch.cat([multiply(x, part) for part in matrix.parts], dim=-1)
    if isinstance(matrix, RoundedMatrix):
        return quantized_linear_reference(x, matrix.weight, matrix.bias)
    dense = _dense(matrix)
    return linear_reference(x, dense.weight, dense.bias)


def multiply_wide(x: Tensor, matrix: Matrix) -> Tensor:
    """Return the product in float32. Rounded to bfloat16, 3 to 7 % of random rows tie at their maximum."""
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


def _dense(matrix: Matrix) -> DenseMatrix:
    assert isinstance(matrix, DenseMatrix), "a matrix packed for another path"
    return matrix
