"""Random quantised matrices, as checkpoints have them."""

from typing import NamedTuple

import torch
from torch import Tensor

from millrace_kernels.linear.format import Number
from millrace_kernels.linear.stored import StoredMatrix

TYPICAL = {Number.FP8: 4, Number.INT8: 70, Number.INT4: 5}
"""The size of the numbers that are made."""


class Kind(NamedTuple):
    """A matrix to make."""

    number: Number
    group: int | None = None
    has_zeros: bool = False
    has_order: bool = False
    inputs: int = 96
    outputs: int = 80
    are_inputs_rounded: bool = False

    def make(self) -> StoredMatrix:
        """Return one whose products with normal inputs are about one."""
        groups = 1 if self.group is None else -(-self.inputs // self.group)
        scales = torch.randn(self.outputs, groups) * (self.inputs**-0.5 / TYPICAL[self.number])
        zeros = torch.randint(-8, 9, scales.shape, dtype=torch.int8) if self.has_zeros else None
        order = torch.randperm(self.inputs) if self.has_order else None
        rounded, values = self.are_inputs_rounded, self._values()
        return StoredMatrix(self.number, values, scales, self.group, zeros, order, rounded)

    def _values(self) -> Tensor:
        shape = (self.outputs, self.inputs)
        if self.number is Number.FP8:
            return (torch.randn(shape) * 4).to(torch.float8_e4m3fn)
        least = -8 if self.number is Number.INT4 else -127
        return torch.randint(least, -least, shape, dtype=torch.int8)
