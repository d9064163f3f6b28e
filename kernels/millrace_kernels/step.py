"""The operations of one step: the interface in which a model's forward is written, for every path.

`TensorStep` computes each operation at once with torch or Triton. The native path's `Recorder` records them
once, and runs the record at every step. Knows tensors; not models, sequences or schedules.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millrace_kernels.linear.format import Format
from millrace_kernels.linear.stored import StoredMatrix


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a layer's attention: `num_kv_heads` divides `num_heads`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """A layer's part of the KV cache, and the part of it that a token sees."""

    number: int
    """Of the layer, from 0."""
    group: int = 0
    """The KV group, whose block tables the layer reads."""
    window: int | None = None
    """A token sees itself and the `window` - 1 before it; None: all before it."""


@dataclass(frozen=True, slots=True)
class Angles:
    """The rotary angles of every position, one table for all layers."""

    table: Tensor
    """float32 [2, length, head_dim / 2]: the cosines, then the sines."""

    @property
    def cos(self) -> Tensor:
        """[length, head_dim / 2]"""
        return self.table[0]

    @property
    def sin(self) -> Tensor:
        """[length, head_dim / 2]"""
        return self.table[1]


class HeadNorms(NamedTuple):
    """The norms of a layer's queries and keys: each head is normalised by itself."""

    query: Tensor
    """[head_dim] of the model's type: the scale of each query head's numbers."""
    key: Tensor
    """The same of each key head."""
    epsilon: float


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


class Scoring(enum.Enum):
    """The function that makes an expert's weight of its score."""

    SOFTMAX = "softmax"
    """Over all experts."""
    SIGMOID = "sigmoid"
    """Of each expert alone."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The way in which each row chooses its experts; experts/README.md has the maths."""

    num_chosen: int
    """The experts of a row: those with the highest scores."""
    scoring: Scoring = Scoring.SOFTMAX
    is_normalised: bool = True
    """Whether the chosen experts' weights are divided by their sum."""


class Routes(Protocol):
    """The chosen experts of each row, with their weights. Each path has its own form."""

    @property
    def num_chosen(self) -> int:
        """The experts of a row."""


class Experts(Protocol):
    """One matrix [outputs, inputs] for each expert, packed for the products of one path. No biases."""

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

    def pack_router(self, rows: Tensor) -> Matrix:
        """Pack a router [experts, inputs], in the model's own type: a rounded one chooses other experts."""

    def pack_experts(
        self, parts: Iterable[Part], num_experts: int, outputs: int, inputs: int, form: Format | None = None
    ) -> Experts:
        """Pack a part [outputs, inputs] for each expert. Parts are read one at a time, as by `pack`."""

    def pack_gated_experts(
        self, parts: Iterable[Part], num_experts: int, outputs: int, inputs: int, form: Format | None = None
    ) -> Experts:
        """Pack two parts for each expert, the gate and its factor, each with half of the outputs."""


class Step(Protocol):
    """One step's operations. Rows are the step's tokens, and after `logits` only those that draw.

    Each worker that shares a model runs a step of its own, with its part of each matrix. `embed`,
    `linear_add`, `linear_sum`, `experts_add` and `logits` return the whole model's result, the same for each
    worker.
    """

    def embed(self, table: Matrix, shares: Shares | None = None) -> Tensor:
        """Return the vectors of the step's tokens, [tokens, inputs]: rows of the table.

        `shares` has the rows of this worker's table; None: all.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Normalise each row of x [rows, width] and scale it by weight [width]."""

    def linear(self, x: Tensor, weight: Matrix) -> Tensor:
        """Map x [rows, inputs] to [rows, outputs]."""

    def linear_add(self, x: Tensor, weight: Matrix, residual: Tensor) -> Tensor:
        """Return residual + the workers' sum of linear(x, weight): each has a part of the inputs.

        Do not use `residual` again: it may be overwritten with the sum.
        """

    def linear_sum(self, x: Tensor, weight: Matrix) -> Tensor:
        """Return the workers' sum of linear(x, weight): each has a part of the inputs.

        For a block whose output is normalised before it is added. `rms_norm` takes the result.
        """

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return residual + x, where x is the same for each worker, as a norm of `linear_sum` is.

        Do not use `residual` again: it may be overwritten with the sum.
        """

    def linear_silu_mul(self, x: Tensor, weight: Matrix) -> Tensor:
        """Map x to [rows, outputs / 2]: silu of the first half of linear(x, weight) times the second."""

    def route(self, x: Tensor, router: Matrix, routing: Routing) -> Routes:
        """Choose the experts of each row by linear(x, router), in float32. Each worker has all of it."""

    def experts_silu_mul(self, x: Tensor, routes: Routes, weight: Experts) -> Tensor:
        """Return `linear_silu_mul` of each row's experts side by side: [rows, num_chosen * outputs / 2]."""

    def experts_add(self, h: Tensor, routes: Routes, weight: Experts, residual: Tensor) -> Tensor:
        """Return residual + the weighted sum of linear(h's part for an expert, weight) over a row's experts.

        h is the result of `experts_silu_mul`. Sums over the workers, and may overwrite the residual, as
        `linear_add`.
        """

    def rotary_kv_write(
        self,
        qkv: Tensor,
        layer: CacheLayer,
        heads: Heads,
        angles: Angles | None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Normalise queries and keys, rotate them by their positions, and store keys and values in the cache.

        Without `norms` they are not normalised, without `angles` not rotated.
        qkv [tokens, (heads + 2 kv_heads) * head_dim]. Returns the queries, [tokens, heads * head_dim].
        """

    def attention(self, query: Tensor, layer: CacheLayer, heads: Heads, scale: float) -> Tensor:
        """Attend causally over the layer's KV cache and within its window, each row to its own sequence."""

    def logits(self, x: Tensor, weight: Matrix, shares: Shares | None = None) -> Tensor:
        """Return linear(x, weight) in float32 for every weight type, with the workers' outputs side by side.

        `shares` has the rows of this worker's weight; None: all.
        """
