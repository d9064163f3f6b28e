"""The weights of a step's operations, packed for one path: matrices, experts, and their packer.

Knows tensors; not models, sequences or schedules.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from millrace_kernels.linear.format import Format
from millrace_kernels.linear.stored import StoredMatrix


@dataclass(frozen=True, slots=True)
class Shares:
    """The division of a table's rows among workers: worker i has `bounds[i]` up to `bounds[i + 1]`."""

    index: int
    """The number of this worker."""
    bounds: tuple[int, ...]
    """Ascending, from 0 to the number of rows: one more than workers."""

    @property
    def begin(self) -> int:
        """The first row of this worker."""
        return self.bounds[self.index]

    @property
    def size(self) -> int:
        """The number of rows of this worker."""
        return self.bounds[self.index + 1] - self.begin

    @property
    def widest(self) -> int:
        """The largest number of rows of a worker."""
        return max(end - begin for begin, end in pairwise(self.bounds))

    @property
    def total(self) -> int:
        """The number of rows of all workers."""
        return self.bounds[-1]


Part = Tensor | StoredMatrix
"""Rows of a matrix: plain numbers [rows, inputs], or quantised ones as a checkpoint has them."""


def require_plain(part: Part) -> Tensor:
    """Return a part of plain numbers."""
    assert isinstance(part, Tensor), "a quantised part without its format"
    return part


def require_stored(part: Part) -> StoredMatrix:
    """Return a quantised part."""
    assert isinstance(part, StoredMatrix), "a part of plain numbers in a quantised matrix"
    return part


class Matrix(Protocol):
    """A weight [outputs, inputs] with its bias, packed for the products of one path."""

    @property
    def inputs(self) -> int:
        """Columns of the weight."""

    @property
    def outputs(self) -> int:
        """Rows of the weight."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Matrices with the same inputs as one matrix with consecutive outputs; not for gated products.

    So projections of one input are one operation of the model, even if their formats differ.
    """

    parts: tuple[Matrix, ...]

    @property
    def inputs(self) -> int:
        """Columns of each part."""
        return self.parts[0].inputs

    @property
    def outputs(self) -> int:
        """Rows of all parts."""
        return sum(part.outputs for part in self.parts)


def parts_of(matrix: Matrix) -> tuple[Matrix, ...]:
    """Return the matrices of a SideBySide, or the matrix itself."""
    return matrix.parts if isinstance(matrix, SideBySide) else (matrix,)


class Experts(Protocol):
    """One matrix [outputs, inputs] for each expert, with its bias, packed for the products of one path."""

    @property
    def num_experts(self) -> int:
        """Matrices."""

    @property
    def inputs(self) -> int:
        """Columns of each matrix."""

    @property
    def outputs(self) -> int:
        """Rows of each matrix."""


class Packer(Protocol):
    """Packs matrices for one path, in the model's type and on its device.

    `form` is the format of quantised parts, which are kept as they are: all parts of one matrix have it, and
    one order of inputs. Without it parts are plain numbers, which the packer may round. Every method may
    raise an error for a format that its path has no products for.
    """

    dtype: torch.dtype
    device: torch.device

    def pack(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> Matrix:
        """Pack parts [any rows, inputs], `outputs` rows in all, one below the other.

        Parts are read one at a time, so that at most one is in memory beside the packed matrix.
        """

    def pack_gated(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> Matrix:
        """Pack a gate's rows, and below them as many rows of its factor, for `Step.linear_silu_mul`."""

    def pack_table(self, rows: Tensor) -> Matrix:
        """Pack an embedding, a head, or a tied matrix for both: rows [tokens, inputs]."""

    def pack_router(self, rows: Tensor, bias: Tensor | None = None) -> Matrix:
        """Pack a router [experts, inputs], in the model's own type: a rounded one chooses other experts.

        bias [experts]
        """

    def pack_experts(
        self,
        parts: Iterable[Part],
        num_experts: int,
        outputs: int,
        inputs: int,
        form: Format | None = None,
        *,
        bias: Tensor | None = None,
    ) -> Experts:
        """Pack a part [outputs, inputs] for each expert. Parts are read one at a time, as by `pack`.

        bias [experts, outputs]
        """

    def pack_gated_experts(
        self,
        parts: Iterable[Part],
        num_experts: int,
        outputs: int,
        inputs: int,
        form: Format | None = None,
        *,
        bias: Tensor | None = None,
    ) -> Experts:
        """Pack two parts for each expert, the gate and its factor, each with half of the outputs.

        bias [experts, outputs], the gate's first
        """
