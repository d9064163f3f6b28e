"""Reads quantised matrices: from a scheme's tensors to a part of a `StoredMatrix`, cut for one worker."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from millrace_fit.quantization.rules import Quantization
from millrace_fit.quantization.scheme import WORD_NIBBLES, Kind, Packing, Scheme
from millrace_fit.shard import Cut, whole
from millrace_kernels.linear.format import GROUP, Format, Number
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.weights import Part
from millrace_runtime.execution.errors import BadCheckpointError, CapacityError, UnsupportedModelError
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.execution.weights.unpacking import (
    LARGEST_SCALE,
    unpack_awq,
    unpack_bytes,
    unpack_down,
    unpack_nibbles,
    widen_blocks,
)

_NUMBERS = {Kind.FP8: Number.FP8, Kind.INT8: Number.INT8, Kind.INT4: Number.INT4}
_LEAST_GROUP = {Number.FP8: GROUP, Number.INT8: 1, Number.INT4: GROUP}
"""Inputs of the smallest group that kernels multiply."""
_NAMED_SCALES = (Packing.PLAIN, Packing.COMPRESSED)
"""Packings whose writers differ in the scales' name."""
_GPTQ = (Packing.GPTQ, Packing.GPTQ_V2)
_MIDDLES = (-1, 0)
"""A symmetric file's zero point less 8, as it is stored: GPTQModel writes 8 into the first version, too."""
_BYTES_SORTED = 4 << 20
"""At once: a sorted copy of all would be a second matrix in memory. 64 rows at once took a third longer than
all of 2048, by hand, with two threads."""
_LARGEST = 7
"""The largest number of 4 bits, less 8."""
_ZEROS = ("bias", "weight_zero_point")
"""Endings of tensors that old writers wrote where the model has none: they were zeros."""


class Form(NamedTuple):
    """The format and the order that matrices share if they are packed as one."""

    format: Format
    order: tuple[int, ...] | None
    """The input of each column; None: as they come."""

    def __str__(self) -> str:
        return f"{self.format}{'' if self.order is None else f', inputs in the order {self.order[:4]}…'}"


class StoredReader:
    """Reads one checkpoint's matrices: plain numbers as a tensor, and quantised ones with their scales."""

    def __init__(self, reader: Reader, quantization: Quantization) -> None:
        self._reader, self._quantization = reader, quantization.fit_to(reader.names)

    def find_form(self, name: str, columns: Cut) -> Form | None:
        """Return how some columns of a matrix are stored; None: in plain numbers. Raises ModelError."""
        scheme = self._quantization.find_scheme(name)
        if scheme is None or scheme.is_widened:
            return None
        order = self._read_order(name, scheme, columns)
        return Form(_choose_format(name, scheme, columns), None if order is None else tuple(order.tolist()))

    def read(self, name: str, rows: Cut, columns: Cut) -> Part:
        """Return some rows and columns. Raises ModelError: also for a cut within a group."""
        scheme = self._quantization.find_scheme(name)
        if scheme is None:
            return self._reader.read(f"{name}.weight", rows, columns)
        if scheme.is_widened:
            return self._widen(name, scheme, rows, columns)
        for part in scheme.list_parts(rows.total, columns.total):
            if not part.is_read:
                self._skip(f"{name}.{part.ending}", must_be_zero=part.ending in _ZEROS)
        match scheme.packing:
            case Packing.PLAIN:
                stored = self._read_plain(name, scheme, rows, columns)
            case Packing.COMPRESSED:
                stored = self._read_compressed(name, scheme, rows, columns)
            case Packing.AWQ:
                stored = self._read_awq(name, scheme, rows, columns)
            case Packing.GPTQ | Packing.GPTQ_V2:
                stored = self._read_gptq(name, scheme, rows, columns)
        stored = replace(stored, are_inputs_rounded=scheme.are_inputs_rounded)
        if not bool(stored.scales.isfinite().all()):
            raise self._refuse_scales(
                f"{name}.{scheme.scale if scheme.packing in _NAMED_SCALES else 'scales'}"
            )
        return self._sort(name, scheme, columns, _regroup(stored, name, scheme, columns))

    def _widen(self, name: str, scheme: Scheme, rows: Cut, columns: Cut) -> Tensor:
        """Return some rows and columns of float blocks as plain numbers, in bfloat16."""
        groups, scale = _cut_groups(scheme, columns), f"{name}.{scheme.scale}"
        size = scheme.group or columns.total
        blocks = self._reader.read(f"{name}.weight_blocks", rows, groups, whole(size // 2), types=("U8",))
        scales = self._reader.read(scale, rows, groups, types=("U8",))
        if bool((scales > LARGEST_SCALE).any()):
            raise self._refuse_scales(scale)
        first = columns.begin % size
        return widen_blocks(blocks, scales)[:, first : first + columns.size]

    def _refuse_scales(self, tensor: str) -> BadCheckpointError:
        place = self._reader.find_place(tensor)
        return BadCheckpointError(
            f"{place} has scales that are infinite or no numbers: download or quantise the model again"
        )

    def _skip(self, name: str, *, must_be_zero: bool) -> None:
        """Leave out a tensor, if it is there and nobody has read it."""
        if must_be_zero and self._reader.is_unread(name) and bool(self._reader.read_whole(name).any()):
            raise UnsupportedModelError(
                f"{self._reader.find_place(name)} is not zero, and replicas read such matrices without it: "
                "take another quantisation of the model"
            )
        self._reader.skip(name)

    def _read_plain(self, name: str, scheme: Scheme, rows: Cut, columns: Cut) -> StoredMatrix:
        number = _NUMBERS[scheme.kind]
        wanted = ("F8_E4M3",) if number is Number.FP8 else ("I8",)
        values = self._reader.read(f"{name}.weight", rows, columns, types=wanted)
        scales = self._read_plain_scales(name, scheme, rows, columns)
        return StoredMatrix(number, values.clone(), scales)

    def _read_plain_scales(self, name: str, scheme: Scheme, rows: Cut, columns: Cut) -> Tensor:
        """Return float32 [rows, groups]."""
        scale = f"{name}.{scheme.scale}"
        if scheme.rows is None:
            return self._reader.read_scalar(scale).expand(rows.size, 1).contiguous()
        groups = _cut_groups(scheme, columns)
        blocks = Cut(-(-rows.total // scheme.rows), rows.begin // scheme.rows, -(-rows.end // scheme.rows))
        shape = {1: (blocks,), 2: (blocks, groups), 4: (blocks, whole(1), groups, whole(1))}
        stored = self._reader.read(scale, *shape.get(len(self._reader.find_shape(scale)), shape[2]))
        which = torch.arange(rows.begin, rows.end) // scheme.rows - blocks.begin
        return stored.float().reshape(blocks.size, -1)[which]

    def _read_compressed(self, name: str, scheme: Scheme, rows: Cut, columns: Cut) -> StoredMatrix:
        is_int4 = scheme.kind is Kind.INT4
        numbers, unpack = (8, unpack_nibbles) if is_int4 else (4, unpack_bytes)
        words = self._reader.read(
            f"{name}.weight_packed", rows, _cut_words(name, columns, numbers), types=("I32",)
        )
        groups = _cut_groups(scheme, columns)
        scales = self._read_plain_scales(name, scheme, rows, columns)
        zeros = None
        if scheme.has_zeros:
            cover = Cut(-(-rows.total // numbers), rows.begin // numbers, -(-rows.end // numbers))
            packed = self._reader.read(f"{name}.weight_zero_point", cover, groups, types=("I32",))
            first = rows.begin - cover.begin * numbers
            zeros = unpack_down(packed)[first : first + rows.size].contiguous()
        values = unpack(words)[:, : columns.size]
        return StoredMatrix(_NUMBERS[scheme.kind], values, scales, zeros=zeros)

    def _read_awq(self, name: str, scheme: Scheme, rows: Cut, columns: Cut) -> StoredMatrix:
        words, groups = _cut_words(name, rows, WORD_NIBBLES), _cut_groups(scheme, columns)
        values = unpack_awq(self._reader.read(f"{name}.qweight", columns, words, types=("I32",)))
        zeros = unpack_awq(self._reader.read(f"{name}.qzeros", groups, words, types=("I32",)))
        if values.shape[0] > rows.size:  # the last word has less than eight
            values, zeros = values[: rows.size].contiguous(), zeros[: rows.size].contiguous()
        scales = self._reader.read(f"{name}.scales", groups, rows).float().t().contiguous()
        return StoredMatrix(Number.INT4, values, scales, zeros=zeros)

    def _read_gptq(self, name: str, scheme: Scheme, rows: Cut, columns: Cut) -> StoredMatrix:
        groups = _cut_groups(scheme, columns)
        words = self._reader.read(
            f"{name}.qweight", _cut_words(name, columns, WORD_NIBBLES), rows, types=("I32",)
        )
        scales = self._reader.read(f"{name}.scales", groups, rows).float().t().contiguous()
        zeros = self._read_gptq_zeros(name, scheme, rows, groups)
        values = unpack_nibbles(words.t())[:, : columns.size]
        return StoredMatrix(Number.INT4, values, scales, zeros=zeros)

    def _read_gptq_zeros(self, name: str, scheme: Scheme, rows: Cut, groups: Cut) -> Tensor | None:
        """Return int8 [rows, groups]; None if they are 8, the middle."""
        tensor = f"{name}.qzeros"
        stored = self._reader.read(tensor, groups, _cut_words(name, rows, WORD_NIBBLES), types=("I32",))
        zeros = unpack_nibbles(stored).t()[: rows.size].contiguous()
        if not scheme.has_zeros:
            if not any(bool((zeros == middle).all()) for middle in _MIDDLES):
                raise BadCheckpointError(
                    f"{self._reader.find_place(tensor)} has zero points, and quantization_config says sym: "
                    "correct config.json"
                )
            return None
        if scheme.packing is Packing.GPTQ_V2:
            return zeros
        zeros += 1  # it is stored less one, within four bits
        return zeros.masked_fill_(zeros > _LARGEST, -_LARGEST - 1)

    def _sort(self, name: str, scheme: Scheme, columns: Cut, stored: StoredMatrix) -> StoredMatrix:
        """Return the columns by their groups, in the same memory."""
        order = self._read_order(name, scheme, columns)
        if order is None:
            return stored
        num_rows = max(1, _BYTES_SORTED // max(1, stored.values[0].nbytes))
        for begin in range(0, len(stored.values), num_rows):
            rows = stored.values[begin : begin + num_rows]
            rows.copy_(rows[:, order])
        return replace(stored, order=order)

    def _read_order(self, name: str, scheme: Scheme, columns: Cut) -> Tensor | None:
        """Return the columns sorted by their groups, int64; None if they are. Raises ModelError.

        GPTQ's tensor counts even if config.json says that there is no order, as in AutoGPTQ.
        """
        ending = "weight_g_idx" if scheme.packing is Packing.COMPRESSED else "g_idx"
        tensor = f"{name}.{ending}"
        if not scheme.is_ordered and (scheme.packing not in _GPTQ or tensor not in self._reader.names):
            return None
        groups = self._reader.read(tensor, columns, types=("I32", "I64")).long()
        if scheme.group is None:  # all inputs are in one
            return None
        expected = torch.arange(columns.begin, columns.end) // scheme.group
        if torch.equal(groups, expected):
            return None
        if columns.size < columns.total:
            raise CapacityError(
                f"the groups of {name} take inputs in any order (desc_act), which workers can't share: "
                "serve it with --tensor-parallel 1"
            )
        order = torch.argsort(groups, stable=True)
        if not torch.equal(groups[order], expected):
            raise BadCheckpointError(
                f"{self._reader.find_place(tensor)} does not put {scheme.group} inputs into each group: "
                "download the model again"
            )
        return order


def _cut_groups(scheme: Scheme, columns: Cut) -> Cut:
    """Return the groups that some columns lie in."""
    if scheme.group is None:
        return whole(1)
    end = -(-columns.end // scheme.group)
    return Cut(scheme.count_groups(columns.total), columns.begin // scheme.group, end)


def _choose_format(name: str, scheme: Scheme, columns: Cut) -> Format:
    """Return the format of some columns: a cut within a group leaves smaller groups. Raises CapacityError."""
    number = _NUMBERS[scheme.kind]
    if scheme.group is None:
        return Format(number, None, scheme.has_zeros)
    group = math.gcd(scheme.group, columns.begin, 0 if columns.end == columns.total else columns.end)
    if group < min(scheme.group, _LEAST_GROUP[number]):
        raise CapacityError(
            f"the columns {columns.begin} to {columns.end} of {name} cut its groups of {scheme.group}: share "
            "the model among fewer workers (--tensor-parallel)"
        )
    return Format(number, group, scheme.has_zeros)


def _regroup(stored: StoredMatrix, name: str, scheme: Scheme, columns: Cut) -> StoredMatrix:
    """Return the matrix with groups that begin at its first column."""
    group = _choose_format(name, scheme, columns).group
    if group == scheme.group:
        return replace(stored, group=group)
    assert group is not None, "no cut joins groups"
    begins = torch.arange(columns.begin, columns.end, group)
    which = begins // (scheme.group or columns.total) - columns.begin // (scheme.group or columns.total)
    zeros = None if stored.zeros is None else stored.zeros[:, which].contiguous()
    return replace(stored, scales=stored.scales[:, which].contiguous(), zeros=zeros, group=group)


def _cut_words(name: str, cut: Cut, numbers: int) -> Cut:
    """Return the words that some columns or rows lie in. Raises CapacityError for a cut within one."""
    if cut.begin % numbers or (cut.end % numbers and cut.end != cut.total):
        raise CapacityError(
            f"{cut.begin} to {cut.end} of {name} cuts its packed words of {numbers} numbers: share the model "
            "among fewer workers (--tensor-parallel)"
        )
    return Cut(-(-cut.total // numbers), cut.begin // numbers, -(-cut.end // numbers))
