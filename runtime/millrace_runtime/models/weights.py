"""The source of a model's weights."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from millrace_fit.shard import Cut
from millrace_kernels.step import Matrix


class Weights(Protocol):
    """A checkpoint's tensors by name, in the type, the format and on the device that the model runs with.

    A `Cut` says which rows or columns a worker keeps; no others are read.
    Every method raises ModelError where a tensor is missing or has another shape or an unsupported type.
    """

    device: torch.device

    def vector(self, name: str, size: int) -> Tensor:
        """Return a tensor [size], such as a norm's scale."""

    def matrix(self, names: Mapping[str, Cut], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        """Return projections of one input as one matrix: rows of each `name.weight` in turn.

        With `has_bias` each has a `name.bias` as well.
        """

    def skip(self, name: str) -> None:
        """Leave a tensor out, if it is there, as the model does not need it. All others must be read."""

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Return the rows of an embedding or a head, `name.weight`, which has one for each token."""

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Return the same rows of a gate and of its product as one matrix."""
