"""The operations of one step: the interface in which a model's forward is written, for every path.

`TensorStep` computes each operation at once with torch or Triton. The native path's `Recorder` records them
once, and runs the record at every step. Knows tensors; not models, sequences or schedules.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from millrace_kernels.weights import Experts, Matrix, Shares


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

    def linear_gelu_mul(self, x: Tensor, weight: Matrix) -> Tensor:
        """Return the same with gelu, by tanh."""

    def route(self, x: Tensor, router: Matrix, routing: Routing) -> Routes:
        """Choose the experts of each row by linear(x, router), in float32. Each worker has all of it."""

    def experts_silu_mul(
        self, x: Tensor, routes: Routes, weight: Experts, limit: float | None = None
    ) -> Tensor:
        """Return `linear_silu_mul` of each row's experts side by side: [rows, num_chosen * outputs / 2].

        With a limit gates and factors are clamped to it; experts/README.md has the maths.
        """

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

    def attention(
        self,
        query: Tensor,
        layer: CacheLayer,
        heads: Heads,
        scale: float,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend causally over the layer's KV cache and within its window, each row to its own sequence.

        `sinks` float32 [heads]: a score of each head for a key without a value, which every query sees.
        """

    def logits(self, x: Tensor, weight: Matrix, shares: Shares | None = None) -> Tensor:
        """Return linear(x, weight) in float32 for every weight type, with the workers' outputs side by side.

        `shares` has the rows of this worker's weight; None: all.
        """
