"""The operations on tensors of workers that share a model, for every transport."""

from typing import Protocol

import torch
from torch import Tensor

from millrace_kernels.weights import Shares


class Group(Protocol):
    """One worker's side of the exchange. All workers make the same calls in the same order."""

    def sum(self, part: Tensor) -> Tensor:
        """Return the sum of all workers' parts, in the order of the workers."""

    def gather(self, part: Tensor, shares: Shares) -> Tensor:
        """Return all workers' parts side by side: [rows, shares.total] of this worker's [rows, share]."""


class Alone:
    """The only worker: its part is the whole."""

    def sum(self, part: Tensor) -> Tensor:
        """Return the part."""
        return part

    def gather(self, part: Tensor, shares: Shares) -> Tensor:  # noqa: ARG002  as in Group
        """Return the part."""
        return part


def sum_in_order(parts: list[Tensor]) -> Tensor:
    """Return ((part 0 + part 1) + part 2) + …, rounded to the parts' type after each: the definition."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def gather_columns(parts: list[Tensor]) -> Tensor:
    """Return the parts' columns side by side: the definition."""
    return torch.cat(parts, dim=1)
