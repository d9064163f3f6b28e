"""The interface between models and the loader, cache and runner: the same for every architecture."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millrace_fit.quantization.rules import Quantization
from millrace_fit.shard import Cut
from millrace_kernels.step import Step
from millrace_kernels.weights import Experts, Matrix


@dataclass(frozen=True, slots=True)
class KvShape:
    """The KV cache of one layer for each token: a key and a value for each KV head."""

    num_kv_heads: int
    head_dim: int
    group: int = 0
    """The KV group, whose block tables the layer reads."""


class Model(Protocol):
    """Computes hidden states from tokens, and logits from hidden states, by the operations of a step."""

    def forward(self, step: Step) -> Tensor:
        """Return the hidden states of the step's tokens, [tokens, width]."""

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Return float32 logits [rows, vocabulary] of chosen hidden states [rows, width]."""


class Rows(NamedTuple):
    """Rows of a stored matrix that a worker keeps, and how they differ from what is stored."""

    cut: Cut
    order: tuple[int, ...] | None = None
    """The new order of each so many rows, such as those of a head; None: as they are stored."""
    factor: float = 1.0
    """Of weights and bias."""
    addend: float = 0.0
    """Of a vector's numbers, added before that."""


class Weights(Protocol):
    """A checkpoint's tensors by name, in the type, the format and on the device that the model runs with.

    A `Cut` says which rows or columns a worker keeps. It reads no others.
    Every method raises ModelError if a tensor is missing, has another shape or an unsupported type.
    """

    device: torch.device
    names: Collection[str]
    """Of all tensors that are stored."""

    def vector(self, name: str, rows: Rows, *, is_float: bool = False) -> Tensor:
        """Return `name.weight`, a vector such as a norm's scale. With `is_float` it is in float32."""

    def matrix(self, rows: Mapping[str, Rows], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        """Return projections of one input as one matrix: rows of each `name.weight` in turn.

        With `has_bias` each has a `name.bias` as well.
        """

    def skip(self, name: str) -> None:
        """Leave out a tensor that the model does not need, if it exists. The model must read all others."""

    def skip_copy(self, name: str, original: str) -> None:
        """Leave out a tied head, if it is stored. Raises ModelError if it differs from the embedding."""

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Return rows of `name.weight`, an embedding, which has one row for each token."""

    def head(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Return rows of a head, which has one row for each token."""

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Return the same rows of `gate` and `up` as one matrix."""

    def router(self, name: str, num_experts: int, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Return `name.weight`, which scores the experts, whole and not rounded any further."""

    def experts(self, names: Sequence[str], rows: Rows, inputs: Cut, *, has_bias: bool = False) -> Experts:
        """Return the same rows of each expert's `name.weight`, in the order of their numbers."""

    def gated_experts(
        self, names: Sequence[tuple[str, str]], rows: Cut, inputs: int, *, has_bias: bool = False
    ) -> Experts:
        """Return the same rows of each expert's gate and up, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A checked config.json: its sizes, and the model that it describes."""

    vocabulary_size: int
    max_length: int
    """Positions that the model was trained for."""
    kv_shapes: tuple[KvShape, ...]
    """By layer."""
    groups: tuple[int | None, ...]
    """Each KV group's window: a token sees itself and the `window` - 1 before it; None: all before it."""
    quantization: Quantization
    """How its matrices are stored."""
    beside: tuple[str, ...]
    """The beginnings of the names of tensors that are other parts', such as a vision tower's."""
    build: Callable[[Weights, int], Model]
    """Returns the model, given its weights and the longest sequence to serve."""
