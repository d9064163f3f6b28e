"""A checkpoint's quantised matrix as the products on GPUs read it, packed once while it is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import GROUP, Format, Number
from millrace_kernels.linear.gpu.choice import Capability
from millrace_kernels.linear.stored import StoredMatrix

UNIT = 128
"""Inputs whose numbers lie together in INT4, at most: two times 64 of one byte each."""
LEVELS = 16
"""A number of 4 bits lies in the upper half of its byte, as 16 times itself."""


@dataclass(frozen=True, slots=True)
class GpuMatrix:
    """Codes, scales and zero points. `choose_product` says what becomes of a product's inputs."""

    form: Format
    codes: Tensor
    """FP8: float8_e4m3fn, INT8: int8 [outputs, inputs]. INT4: int8 [units, outputs, unit / 2], where
    byte i of a unit has input i in its low half, and input unit / 2 + i in its high half, as -8 to 7."""
    scales: Tensor
    """float32 [groups, outputs]. In INT4 a sixteenth, which is exact: the codes count 16 times."""
    zeros: Tensor | None
    """int8 [groups, outputs]; None: all are 0."""
    bias: Tensor | None
    order: Tensor | None
    """int64 [inputs]: the model's input that each column multiplies; None: as they come."""
    inputs: int
    capability: Capability
    may_round_inputs: bool = False
    """Whether the author of each part rounded activations too."""

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.scales.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, scales, zero points and order."""
        parts = (self.codes, self.scales, self.zeros, self.order)
        return sum(part.nbytes for part in parts if part is not None)

    def arrange(self, x: Tensor) -> Tensor:
        """Return the inputs in the order of the columns."""
        return x if self.order is None else x.index_select(1, self.order)


def find_capability(device: torch.device) -> Capability | None:
    """Return a GPU's compute capability, or None for a CPU."""
    return Capability(*torch.cuda.get_device_capability(device)) if device.type == "cuda" else None


def unit_of(group: int | None) -> int:
    """Return how many inputs lie together: a power of two that divides the group.

    Raises ValueError unless groups are of a multiple of 32 inputs.
    """
    if group is None:
        return UNIT
    if group % GROUP:
        raise ValueError(f"groups of {group} inputs have no product on GPUs: multiples of {GROUP} have one")
    return min(UNIT, group & -group)


def pack_for_gpu(
    parts: Iterable[StoredMatrix],
    outputs: int,
    bias: Tensor | None,
    device: torch.device,
    capability: Capability,
) -> GpuMatrix:
    """Pack parts, one below the other. At most one is in memory beside the packed matrix.

    Raises ValueError for groups that no product has.
    """
    rest = iter(parts)
    first = next(rest)
    matrix = _allocate(first, outputs, bias, device, capability)
    begin = _fill(matrix, first.to(device), 0)
    for part in rest:
        assert part.form == first.form, "matrices of several formats"
        begin = _fill(matrix, part.to(device), begin)
        may_round = matrix.may_round_inputs and part.are_inputs_rounded
        matrix = replace(matrix, may_round_inputs=may_round)
    assert begin == outputs, "parts of other outputs"
    return matrix


def _allocate(
    part: StoredMatrix, outputs: int, bias: Tensor | None, device: torch.device, capability: Capability
) -> GpuMatrix:
    inputs, groups, unit = part.shape[1], part.scales.shape[1], unit_of(part.group)
    is_int4 = part.number is Number.INT4
    shape = (-(-inputs // unit), outputs, unit // 2) if is_int4 else (outputs, inputs)
    zeros = None if part.zeros is None else torch.empty((groups, outputs), dtype=torch.int8, device=device)
    return GpuMatrix(
        form=part.form,
        codes=torch.empty(shape, dtype=part.values.dtype, device=device),
        scales=torch.empty((groups, outputs), device=device),
        zeros=zeros,
        bias=bias,
        order=None if part.order is None else part.order.to(device),
        inputs=inputs,
        capability=capability,
        may_round_inputs=part.are_inputs_rounded,
    )


def _fill(matrix: GpuMatrix, part: StoredMatrix, begin: int) -> int:
    """Write a part's rows, and return where the next ones begin."""
    rows = slice(begin, begin + len(part))
    if part.number is Number.INT4:
        matrix.codes[:, rows] = _pair(part.values, unit_of(part.group))
        matrix.scales[:, rows] = part.scales.t() / LEVELS
    else:
        matrix.codes.view(torch.int8)[rows] = part.values.view(torch.int8)
        matrix.scales[:, rows] = part.scales.t()
    if matrix.zeros is not None and part.zeros is not None:
        matrix.zeros[:, rows] = part.zeros.t()
    return rows.stop


def _pair(values: Tensor, unit: int) -> Tensor:
    """Return numbers of 4 bits [outputs, inputs] as bytes of two, [units, outputs, unit / 2]."""
    padded = functional.pad(values, (0, -values.shape[1] % unit))
    halves = padded.view(len(values), -1, 2, unit // 2).permute(2, 1, 0, 3)
    return torch.bitwise_or(halves[0] & 15, halves[1] << 4)
