"""A checkpoint's tensors, packed for the kernels as the model's constructor asks for them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from millrace_fit.quantization.quantization import NOT_QUANTIZED, Quantization
from millrace_fit.shard import Cut, whole
from millrace_kernels.linear.format import Format
from millrace_kernels.weights import Experts, Matrix, Packer, Part, SideBySide
from millrace_runtime.execution.errors import BadCheckpointError, UnsupportedModelError
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.execution.weights.stored_reader import Form, StoredReader


class CheckpointWeights:
    """A checkpoint's tensors, packed for the kernels as the model's constructor asks for them."""

    def __init__(self, reader: Reader, packer: Packer, quantization: Quantization = NOT_QUANTIZED) -> None:
        self.device, self.names = packer.device, reader.names
        self._reader, self._packer = reader, packer
        self._matrices = StoredReader(reader, quantization)

    def vector(self, name: str, size: int) -> Tensor:
        """Read the vector, as a copy."""
        return self._read_vector(name, whole(size))

    def matrix(self, names: Mapping[str, Cut], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        """Read each part, and pack parts of one form as one matrix."""
        runs = groupby(names, key=lambda name: self._matrices.find_form(name, inputs))
        packed = []
        for form, run in runs:
            alike = {name: names[name] for name in run}
            bias = self._bias(alike) if has_bias else None
            outputs, parts = sum(rows.size for rows in alike.values()), self._parts(alike.items(), inputs)
            packed.append(self._packer.pack(parts, outputs, inputs.size, bias, _format(form)))
        return packed[0] if len(packed) == 1 else SideBySide(tuple(packed))

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Read and pack rows of a table."""
        return self._packer.pack_table(self._reader.read(f"{name}.weight", rows, whole(inputs)))

    def head(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Read and pack a head as a table, or as any other matrix if it is quantised."""
        if self._matrices.find_form(name, whole(inputs)) is None:
            return self.table(name, rows, inputs)
        return self.matrix({name: rows}, whole(inputs))

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Read gate and product, and pack them as one matrix."""
        names = {gate: rows, up: rows}
        form = self._find_form(names, whole(inputs))
        bias = self._bias(names) if has_bias else None
        parts = self._parts(names.items(), whole(inputs))
        return self._packer.pack_gated(parts, 2 * rows.size, inputs, bias, form)

    def router(self, name: str, num_experts: int, inputs: int) -> Matrix:
        """Read and pack a router. A quantised one is widened, so that no path rounds what it scores."""
        (part,) = self._parts([(name, whole(num_experts))], whole(inputs))
        return self._packer.pack_router(part if isinstance(part, Tensor) else part.widen())

    def experts(self, names: Sequence[str], outputs: int, inputs: Cut) -> Experts:
        """Read each expert's part and pack all."""
        form = self._find_form(names, inputs)
        parts = self._parts(((name, whole(outputs)) for name in names), inputs)
        return self._packer.pack_experts(parts, len(names), outputs, inputs.size, form)

    def gated_experts(self, names: Sequence[tuple[str, str]], rows: Cut, inputs: int) -> Experts:
        """Read gate and product of each expert in turn, and pack all."""
        flat = [name for pair in names for name in pair]
        form = self._find_form(flat, whole(inputs))
        parts = self._parts(((name, rows) for name in flat), whole(inputs))
        return self._packer.pack_gated_experts(parts, len(names), 2 * rows.size, inputs, form)

    def skip(self, name: str) -> None:
        """Count a tensor as read, if it is there."""
        self._reader.skip(name)

    def skip_copy(self, name: str, original: str) -> None:
        """Compare the two, part by part, and count the copy as read."""
        if name in self.names and not self._reader.are_equal(name, original):
            raise BadCheckpointError(
                f"the tensor {name} differs from {original}, and by tie_word_embeddings in config.json it "
                "would be left out: set that to false, or remove the tensor"
            )
        self.skip(name)

    def _parts(self, names: Iterable[tuple[str, Cut]], inputs: Cut) -> Iterator[Part]:
        for name, rows in names:
            yield self._matrices.read(name, rows, inputs)

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

    def _bias(self, names: Mapping[str, Cut]) -> Tensor:
        return torch.cat([self._read_vector(f"{name}.bias", rows) for name, rows in names.items()])

    def _read_vector(self, name: str, numbers: Cut) -> Tensor:
        stored = self._reader.read(name, numbers)
        # A copy: if the mapped file is cut short, a later read would kill the process.
        return torch.empty(stored.shape, dtype=self._packer.dtype, device=self.device).copy_(stored)


def _format(form: Form | None) -> Format | None:
    return None if form is None else form.format
