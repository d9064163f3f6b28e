"""Packs matrices for the native products, in huge pages. linear/README.md has the layout."""

import mmap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.native import abi
from millrace_kernels.native.abi import LANES
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.weights.stored_strips import fit_form
from millrace_kernels.native.weights.strips import Strips, allocate_strips
from millrace_kernels.weights import Part

CHUNK_BYTES = 64 << 20
_TYPE_NAMES = {torch.float32: "FLOAT32", torch.bfloat16: "BFLOAT16"}


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
    """In the format's layout (linear/README.md); outputs past the last are 0."""
    scales: Tensor | None
    """float32 [strips, 16] of INT8, and of FP8 without groups"""
    bias: Tensor | None
    """float32 [outputs], of each matrix"""
    inputs: int
    outputs: int
    form: Format
    is_gated: bool
    """Whether strips of the first and of the second half of the outputs alternate."""
    dtype: torch.dtype
    """The type of its inputs, unless they are rounded."""
    order: Tensor | None = None
    """int32 [inputs]: the input that each column multiplies; None: as they come."""

    @property
    def layout(self) -> abi.Format:
        """The format by its number in the library."""
        if self.form in {Format.INT8, Format.INT4}:
            return abi.Format[self.form.number.name]
        if self.form.number is Number.INT4:
            return abi.Format.INT4_ZEROS if self.form.has_zeros else abi.Format.INT4_GROUPS
        return abi.Format[f"{self.form.number.name}_{_TYPE_NAMES[self.dtype]}"]


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """The strips of one expert after the other."""

    matrix: PackedMatrix
    """Its data, scales and bias are of all experts, its shape is of one."""
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
        return self._pack(form, parts, outputs, inputs, bias)

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

    def pack_router(self, rows: Tensor, bias: Tensor | None = None) -> PackedMatrix:
        """Pack a router in the model's own type."""
        return self._pack(Format.DENSE, [rows], rows.shape[0], rows.shape[1], bias)

    def pack_experts(
        self,
        parts: Iterable[Part],
        num_experts: int,
        outputs: int,
        inputs: int,
        form: Format | None = None,
        *,
        bias: Tensor | None = None,
    ) -> PackedExperts:
        """Pack the strips of one expert after the other."""
        num_strips = -(-outputs // LANES)
        building = self._begin(form, num_experts * num_strips, outputs, inputs)
        for number, part in _number(parts):
            building.write(building.strips, number * num_strips * LANES, part)
            del part
        return PackedExperts(building.finish(bias, is_gated=False), num_experts)

    def pack_gated_experts(
        self,
        parts: Iterable[Part],
        num_experts: int,
        outputs: int,
        inputs: int,
        form: Format | None = None,
        *,
        bias: Tensor | None = None,
    ) -> PackedExperts:
        """Pack the alternating strips of one expert after the other."""
        packed = self._pack_gated(parts, num_experts, (outputs, inputs), bias, form)
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
        outputs, inputs = shape
        num_strips = -(-outputs // 2 // LANES)
        building = self._begin(form, 2 * count * num_strips, outputs, inputs)
        for number, part in _number(parts):
            half = building.strips.every_other(number % 2)
            building.write(half, number // 2 * num_strips * LANES, part)
            del part
        return building.finish(bias, is_gated=True)

    def _pack(
        self, form: Format | None, parts: Iterable[Part], outputs: int, inputs: int, bias: Tensor | None
    ) -> PackedMatrix:
        building = self._begin(form, -(-outputs // LANES), outputs, inputs)
        begin = 0
        for _, part in _number(parts):
            building.write(building.strips, begin, part)
            begin += part.shape[0]
            del part
        return building.finish(bias, is_gated=False)

    def _begin(self, form: Format | None, count: int, outputs: int, inputs: int) -> "_Building":
        fitting = fit_form(form or self.form)
        strips = allocate_strips(self._arena.allocate, fitting, self.dtype, count, inputs)
        return _Building(strips, (inputs, outputs), self.dtype, fitting, form)


@dataclass(slots=True)
class _Building:
    """A matrix whose parts are being written."""

    strips: Strips
    shape: tuple[int, int]
    """Inputs, outputs"""
    dtype: torch.dtype
    form: Format
    stored_form: Format | None
    """Of its parts, if they are quantised."""
    order: Tensor | None = None
    """Of the inputs, in the quantised parts that are written."""
    has_stored: bool = False
    """Whether one is."""

    def write(self, strips: Strips, begin: int, part: Part) -> None:
        """Write a part. Raises RecordError if a quantised one differs from the others in form or order."""
        if isinstance(part, StoredMatrix):
            if part.form != self.stored_form:
                raise RecordError(
                    f"a part in {part.form} of a matrix in {self.stored_form}: parts have one format"
                )
            if self.has_stored:
                _require_order(self.order, part.order)
            self.order, self.has_stored = part.order, True
        strips.write(begin, part)

    def finish(self, bias: Tensor | None, *, is_gated: bool) -> PackedMatrix:
        """Return the matrix."""
        wide = None if bias is None else bias.float().contiguous()
        order = None if self.order is None else _narrow_order(self.order, self.form, self.shape[0])
        strips = self.strips
        return PackedMatrix(
            strips.data,
            strips.scales,
            wide,
            *self.shape,
            form=self.form,
            is_gated=is_gated,
            dtype=self.dtype,
            order=order,
        )


def _number(parts: Iterable[Part]) -> Iterator[tuple[int, Part]]:
    """Number the parts. It drops each one before it reads the next, where `enumerate` would keep it.

    So must a loop over it, with `del`: else a load would hold two matrices beside what it has packed.
    """
    numbers = count()
    for part in parts:
        yield next(numbers), part
        del part


def _require_order(first: Tensor | None, order: Tensor | None) -> None:
    is_same = order is first or (order is not None and first is not None and torch.equal(order, first))
    if not is_same:
        raise RecordError(
            "parts of one matrix have different orders of inputs (desc_act): pack them as several matrices"
        )


def _narrow_order(order: Tensor, form: Format, inputs: int) -> Tensor:
    """Return the order for the kernels, which read inputs by it. Raises RecordError for an invalid one."""
    if not form.rounds_inputs:
        raise RecordError(f"an order of inputs (desc_act) of a matrix in {form}: only integers may have one")
    if not torch.equal(order.sort().values, torch.arange(inputs)):
        raise RecordError(f"an order of inputs (desc_act) that is no order of {inputs} inputs")
    return order.to(torch.int32)
