"""A checkpoint's tensors, packed for the kernels as the model's constructor asks for them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import declare
from millrace_fit.module_schemes import find_schemes
from millrace_fit.quantization.rules import NOT_QUANTIZED, Quantization
from millrace_fit.shard import Cut, whole
from millrace_fit.tensors import find_fault, list_unread
from millrace_kernels.linear.format import Format
from millrace_kernels.weights import Experts, Matrix, Packer, Part, SideBySide
from millrace_runtime.execution.errors import BadCheckpointError, UnsupportedModelError
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.execution.weights.stored_reader import Form, StoredReader
from millrace_runtime.models.model import Rows


class CheckpointWeights:
    """A checkpoint's tensors, packed for the kernels as the model's constructor asks for them."""

    def __init__(self, reader: Reader, packer: Packer, quantization: Quantization = NOT_QUANTIZED) -> None:
        self.device, self.names = packer.device, reader.names
        self._reader, self._packer = reader, packer
        self._matrices = StoredReader(reader, quantization)

    def vector(self, name: str, rows: Rows, *, is_float: bool = False) -> Tensor:
        """Read the vector, as a copy."""
        return self._read_vector(f"{name}.weight", rows, torch.float32 if is_float else self._packer.dtype)

    def matrix(self, rows: Mapping[str, Rows], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        """Read each part, and pack parts of one form as one matrix."""
        runs = groupby(rows, key=lambda name: self._matrices.find_form(name, inputs))
        packed = []
        for form, run in runs:
            alike = {name: rows[name] for name in run}
            bias = self._bias(alike) if has_bias else None
            outputs, parts = sum(one.cut.size for one in alike.values()), self._parts(alike.items(), inputs)
            packed.append(self._packer.pack(parts, outputs, inputs.size, bias, _format(form)))
        return packed[0] if len(packed) == 1 else SideBySide(tuple(packed))

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Read and pack rows of a table."""
        return self._packer.pack_table(self._reader.read(f"{name}.weight", rows, whole(inputs)))

    def head(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Read and pack a head as a table, or as any other matrix if it is quantised."""
        if self._matrices.find_form(name, whole(inputs)) is None:
            return self.table(name, rows, inputs)
        return self.matrix({name: Rows(rows)}, whole(inputs))

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Read gate and up, and pack them as one matrix."""
        names = dict.fromkeys((gate, up), Rows(rows))
        form = self._find_form(names, whole(inputs))
        bias = self._bias(names) if has_bias else None
        parts = self._parts(names.items(), whole(inputs))
        return self._packer.pack_gated(parts, 2 * rows.size, inputs, bias, form)

    def router(self, name: str, num_experts: int, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Read and pack a router. A quantised one is widened, so that no path rounds what it scores."""
        rows = {name: Rows(whole(num_experts))}
        (part,) = self._parts(rows.items(), whole(inputs))
        bias = self._bias(rows) if has_bias else None
        return self._packer.pack_router(part if isinstance(part, Tensor) else part.widen(), bias)

    def experts(self, names: Sequence[str], rows: Rows, inputs: Cut, *, has_bias: bool = False) -> Experts:
        """Read each expert's part and pack all."""
        alike, outputs = dict.fromkeys(names, rows), rows.cut.size
        form = self._find_form(names, inputs)
        bias = self._bias(alike).view(-1, outputs) if has_bias else None
        parts = self._parts(alike.items(), inputs)
        return self._packer.pack_experts(parts, len(names), outputs, inputs.size, form, bias=bias)

    def gated_experts(
        self, names: Sequence[tuple[str, str]], rows: Cut, inputs: int, *, has_bias: bool = False
    ) -> Experts:
        """Read gate and up of each expert in turn, and pack all."""
        alike, outputs = dict.fromkeys((name for pair in names for name in pair), Rows(rows)), 2 * rows.size
        form = self._find_form(alike, whole(inputs))
        bias = self._bias(alike).view(-1, outputs) if has_bias else None
        parts = self._parts(alike.items(), whole(inputs))
        return self._packer.pack_gated_experts(parts, len(names), outputs, inputs, form, bias=bias)

    def skip(self, name: str) -> None:
        """Count a tensor as read, if it is there."""
        self._reader.skip(name)

    def skip_copy(self, name: str, original: str) -> None:
        """Compare the two, part by part, and count the copy as read."""
        if name in self.names and not self._reader.are_equal(name, original):
            raise BadCheckpointError(
                f"{self._reader.find_place(name)} differs from {original}, and by tie_word_embeddings in "
                "config.json it would be left out: set that to false, or remove the tensor"
            )
        self.skip(name)

    def _parts(self, names: Iterable[tuple[str, Rows]], inputs: Cut) -> Iterator[Part]:
        for name, rows in names:
            yield _change(self._matrices.read(name, rows.cut, inputs), rows)

    def _find_form(self, names: Iterable[str], inputs: Cut) -> Format | None:
        """Return the format of matrices that are packed as one, or raise UnsupportedModelError."""
        forms = {self._matrices.find_form(name, inputs): name for name in names}
        if len(forms) > 1:
            (one, first), (other, second) = list(forms.items())[:2]
            raise UnsupportedModelError(
                f"{first} is stored in {one or 'plain numbers'} and {second} in {other or 'plain numbers'}: "
                "they are one product, so they must be stored alike; take another quantisation of the model"
            )
        return _format(next(iter(forms)))

    def _bias(self, rows: Mapping[str, Rows]) -> Tensor:
        dtype = self._packer.dtype
        return torch.cat([self._read_vector(f"{name}.bias", one, dtype) for name, one in rows.items()])

    def _read_vector(self, name: str, rows: Rows, dtype: torch.dtype) -> Tensor:
        stored = _change_plain(self._reader.read(name, rows.cut), rows)
        # A copy: if the mapped file is cut short, a later read would kill the process.
        return torch.empty(stored.shape, dtype=dtype, device=self.device).copy_(stored)


def _format(form: Form | None) -> Format | None:
    return None if form is None else form.format


def _change(part: Part, rows: Rows) -> Part:
    """Return the rows of a matrix in their new order, times their factor."""
    if isinstance(part, Tensor):
        return _change_plain(part, rows)
    if rows.order is not None:
        part = part.take(_find_order(len(part), rows.order))
    return part if rows.factor == 1.0 else replace(part, scales=part.scales * rows.factor)


def _change_plain(stored: Tensor, rows: Rows) -> Tensor:
    if rows.order is not None:
        stored = stored[_find_order(len(stored), rows.order)]
    if (rows.factor, rows.addend) == (1.0, 0.0):
        return stored
    return (stored.float() + rows.addend) * rows.factor


def _find_order(num_rows: int, order: Sequence[int]) -> Tensor:
    """Return row indices: `order` rearranges each group of `len(order)` consecutive rows."""
    begins = torch.arange(0, num_rows, len(order))
    return (begins[:, None] + torch.tensor(order)).flatten()


_KV_SCALES = ("k_scale", "v_scale", "kv_scale", "output_scale")
"""Endings of the names of a layer's fixed scales of keys and values."""


def find_kv_scale(raw: Mapping[str, Any], reader: Reader) -> str | None:
    """Return a fixed scale of the KV cache, which no replica uses; None if the checkpoint has none."""
    family, shape, _ = declare(raw)
    unread = (name for name in list_unread(family, shape) if name.endswith(_KV_SCALES))
    return next((name for name in unread if name in reader.names), None)


def check_tensors(path: Path, raw: Mapping[str, Any], reader: Reader) -> None:
    """Raise BadCheckpointError or UnsupportedModelError for headers that don't fit config.json.

    It reads no tensor. The operator makes the same check before it creates pods.
    """
    try:
        declared = declare(raw).fit_to(reader.names)
        if fault := find_fault(declared, reader.headers):
            raise BadCheckpointError(f"{path}: {fault}")
        find_schemes(declared)
    except ArchitectureError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
