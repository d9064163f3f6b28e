"""A quantised matrix as a checkpoint has it: its numbers unpacked, and nothing rounded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from millrace_kernels.linear.format import Format, Number


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Some rows of a matrix [outputs, inputs]: numbers, scales, zero points.

    With g = c // group, the weight of output o and column c is (values[o, c] - zeros[o, g]) * scales[o, g].
    """

    number: Number
    values: Tensor
    """[outputs, inputs]: float8_e4m3fn for FP8, int8 for INT8 and for INT4, which has -8 to 7"""
    scales: Tensor
    """float32 [outputs, groups], one group for all inputs or one for each `group` of them"""
    group: int | None = None
    """Inputs that share a scale; None: all."""
    zeros: Tensor | None = None
    """int8 [outputs, groups], -8 to 8; None: all are 0."""
    order: Tensor | None = None
    """int64 [inputs]: the model's input that each column multiplies; None: column i multiplies input i."""
    are_inputs_rounded: bool = False
    """Whether its author rounded activations too, to 8 bits a token: a product on a GPU may."""

    @property
    def form(self) -> Format:
        """The format in which a packer keeps it."""
        return Format(self.number, self.group, self.zeros is not None)

    @property
    def shape(self) -> Sequence[int]:
        """[outputs, inputs]"""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> "StoredMatrix":
        zeros = None if self.zeros is None else self.zeros[rows]
        return replace(self, values=self.values[rows], scales=self.scales[rows], zeros=zeros)

    def take(self, rows: Tensor) -> "StoredMatrix":
        """Return the rows of these numbers, int64, in their order."""
        zeros = None if self.zeros is None else self.zeros[rows]
        values = self.values.view(torch.int8)[rows].view(self.values.dtype)  # torch takes no 8-bit floats
        return replace(self, values=values, scales=self.scales[rows], zeros=zeros)

    def to(self, device: torch.device) -> "StoredMatrix":
        """Return it on a device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        order = None if self.order is None else self.order.to(device)
        values, scales = self.values.to(device), self.scales.to(device)
        return replace(self, values=values, scales=scales, zeros=zeros, order=order)

    def with_group(self, group: int) -> "StoredMatrix":
        """Return the same weights with a scale for each `group` inputs, which divides its own group."""
        times = -(-self.values.shape[1] // group) if self.group is None else self.group // group
        if self.group is not None and self.group % group:
            raise ValueError(f"groups of {self.group} can't be cut into groups of {group}")

        def repeat(one: Tensor) -> Tensor:
            return one.repeat_interleave(times, dim=1)[:, : -(-self.values.shape[1] // group)]

        zeros = None if self.zeros is None else repeat(self.zeros)
        return replace(self, scales=repeat(self.scales), zeros=zeros, group=group)

    def widen(self) -> Tensor:
        """Return the weights by their definition, float32 [outputs, inputs], inputs in the model's order."""
        inputs = self.values.shape[1]
        wide = self.values.float()
        if self.zeros is not None:
            wide = wide - self._spread(self.zeros.float())
        wide = wide * self._spread(self.scales)
        if self.order is None:
            return wide
        back = torch.empty_like(self.order)
        back[self.order] = torch.arange(inputs, device=self.order.device)
        return wide[:, back]

    def _spread(self, by_group: Tensor) -> Tensor:
        """Return a group's number for each of its inputs."""
        inputs = self.values.shape[1]
        return by_group.repeat_interleave(self.group or inputs, dim=1)[:, :inputs]


def stack(parts: Sequence[StoredMatrix]) -> StoredMatrix:
    """Return matrices of one format and order one below the other."""
    first = parts[0]
    assert all(part.form == first.form for part in parts), "matrices of several formats"
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return replace(
        first,
        # torch.cat knows no 8-bit floats
        values=torch.cat([part.values.view(torch.int8) for part in parts]).view(first.values.dtype),
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
    )
