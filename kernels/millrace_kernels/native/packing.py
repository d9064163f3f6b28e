"""Packs matrices for the native products, in huge pages. linear/README.md has the layout."""

import mmap
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.linear.format import Format
from millrace_kernels.native import abi
from millrace_kernels.native.abi import LANES
from millrace_kernels.native.strips import Strips, allocate_strips
from millrace_kernels.step import Part

CHUNK_BYTES = 64 << 20


class Arena:
    """Allocates memory for weights, in large mappings with huge pages.

    Reads of 256 MB were a fifth slower with pages of 4 KB.
    """

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def allocate(self, num_bytes: int) -> Tensor:
        """Return zeros, uint8 [num_bytes], aligned to 64 bytes; they live as long as the tensor."""
        if self._used + num_bytes > self._chunk.shape[0]:
            self._chunk, self._used = map_zeros(max(num_bytes, CHUNK_BYTES)), 0
        begin = self._used
        self._used += -(-num_bytes // 64) * 64
        return self._chunk[begin : begin + num_bytes]


def map_zeros(num_bytes: int) -> Tensor:
    """Return zeros, uint8 [num_bytes], which take memory as they are written, by huge pages if possible.

    Raises OSError without so much memory.
    """
    # Private: most kernels ignore the advice to use huge pages for shared memory.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight as strips of 16 outputs."""

    data: Tensor
    """In the format's layout of native/strips.py; outputs past the last are 0."""
    scales: Tensor | None
    """INT8: float32 [strips, 16]"""
    bias: Tensor | None
    """float32 [outputs]"""
    inputs: int
    outputs: int
    form: Format
    is_gated: bool
    """Whether strips of the first and of the second half of the outputs alternate."""

    @property
    def layout(self) -> abi.Format:
        """The format by its number in the library."""
        if self.form != Format.DENSE:
            return abi.Format[self.form.number.name]
        is_float = self.data.dtype == torch.float32
        return abi.Format.DENSE_FLOAT32 if is_float else abi.Format.DENSE_BFLOAT16


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """The strips of one expert after the other."""

    matrix: PackedMatrix
    """Its data and scales are of all experts, its shape is of one."""
    num_experts: int

    @property
    def inputs(self) -> int:
        """Columns of each matrix."""
        return self.matrix.inputs

    @property
    def outputs(self) -> int:
        """Rows of each matrix."""
        return self.matrix.outputs


class NativePacker:
    """Packs matrices for the native path."""

    def __init__(self, dtype: torch.dtype, form: Format = Format.DENSE) -> None:
        """`form` is the format to which plain numbers are rounded."""
        self.dtype, self.device, self.form = dtype, torch.device("cpu"), form
        self._arena = Arena()

    def pack(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> PackedMatrix:
        """Pack parts as consecutive strips. Raises RecordError for a width or a format without a kernel."""
        return self._pack(form or self.form, parts, outputs, inputs, bias)

    def pack_gated(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> PackedMatrix:
        """Pack alternating strips of the gate and of its factor."""
        return self._pack_gated(parts, 1, (outputs, inputs), bias, form)

    def pack_table(self, rows: Tensor) -> PackedMatrix:
        """Pack a table in the format of tables."""
        return self._pack(self.form.of_tables, [rows], rows.shape[0], rows.shape[1], None)

    def pack_router(self, rows: Tensor) -> PackedMatrix:
        """Pack a router in the model's own type."""
        return self._pack(Format.DENSE, [rows], rows.shape[0], rows.shape[1], None)

    def pack_experts(
        self, parts: Iterable[Part], num_experts: int, outputs: int, inputs: int, form: Format | None = None
    ) -> PackedExperts:
        """Pack the strips of one expert after the other."""
        num_strips, form = -(-outputs // LANES), form or self.form
        strips = self._allocate(form, num_experts * num_strips, inputs)
        for number, part in enumerate(parts):
            strips.write(number * num_strips * LANES, part)
        shape = (inputs, outputs, form)
        matrix = PackedMatrix(strips.data, strips.scales, None, *shape, is_gated=False)
        return PackedExperts(matrix, num_experts)

    def pack_gated_experts(
        self, parts: Iterable[Part], num_experts: int, outputs: int, inputs: int, form: Format | None = None
    ) -> PackedExperts:
        """Pack the alternating strips of one expert after the other."""
        packed = self._pack_gated(parts, num_experts, (outputs, inputs), None, form)
        return PackedExperts(packed, num_experts)

    def _pack_gated(
        self,
        parts: Iterable[Part],
        count: int,
        shape: tuple[int, int],
        bias: Tensor | None,
        form: Format | None,
    ) -> PackedMatrix:
        """Pack `count` pairs of parts of a shape [outputs, inputs], each pair as alternating strips."""
        (outputs, inputs), form = shape, form or self.form
        num_strips = -(-outputs // 2 // LANES)
        strips = self._allocate(form, 2 * count * num_strips, inputs)
        for number, part in enumerate(parts):
            strips.every_other(number % 2).write(number // 2 * num_strips * LANES, part)
        return PackedMatrix(strips.data, strips.scales, _widen(bias), inputs, outputs, form, is_gated=True)

    def _pack(
        self, form: Format, parts: Iterable[Part], outputs: int, inputs: int, bias: Tensor | None
    ) -> PackedMatrix:
        strips = self._allocate(form, -(-outputs // LANES), inputs)
        begin = 0
        for part in parts:
            strips.write(begin, part)
            begin += part.shape[0]
        return PackedMatrix(strips.data, strips.scales, _widen(bias), inputs, outputs, form, is_gated=False)

    def _allocate(self, form: Format, count: int, inputs: int) -> Strips:
        return allocate_strips(self._arena.allocate, form, self.dtype, count, inputs)


def _widen(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float().contiguous()
