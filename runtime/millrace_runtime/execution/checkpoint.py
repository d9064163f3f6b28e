"""A checkpoint's tensors: found in a folder's safetensors files, read once each, packed for the kernels."""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from millrace_fit.dtypes import STORED_TYPES, choose_stored_type
from millrace_fit.files import INDEX, choose_weights, explain_choice, explain_pointer, is_indexed
from millrace_fit.shard import Cut, whole
from millrace_kernels.step import Experts, Matrix, Packer
from millrace_runtime.execution.errors import BadCheckpointError, UnsupportedModelError

_ROWS_COMPARED = 1024
"""Of a tied head and its embedding at once: the first difference ends the comparison."""


class Reader:
    """The tensors of a folder's safetensors files, mapped into memory and read on demand."""

    def __init__(self, path: Path) -> None:
        """Raises BadCheckpointError if files are missing, damaged or hold the same tensor twice."""
        self._path = path
        self._places: dict[str, Any] = {}
        self._unread: set[str] = set()
        names = frozenset(file.name for file in path.iterdir() if file.is_file())
        self.choice = explain_choice(names)
        """Which of two sets of weights is read, in a sentence; None where there is only one."""
        for name in _find_files(path, names):
            self._add(name, _open(path / name))

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._places.keys()

    @property
    def stored_type(self) -> torch.dtype:
        """The stored type of most weights."""
        sizes: Counter[str] = Counter()
        for name, file in self._places.items():
            header = file.get_slice(name)
            sizes[header.get_dtype()] += math.prod(header.get_shape())
        stored: torch.dtype = getattr(torch, choose_stored_type(sizes))
        return stored

    def read(self, name: str, *cuts: Cut) -> Tensor:
        """Return a part of a tensor, cut along each axis, in its stored type.

        Raises BadCheckpointError or UnsupportedModelError.
        """
        if name not in self._places:
            raise BadCheckpointError(
                f"{self._path}: the safetensors files lack the tensor {name}; download the model "
                "again, or correct config.json if it describes another model"
            )
        stored, shape = self._find(name), [cut.total for cut in cuts]
        if stored.get_shape() != shape:
            raise BadCheckpointError(
                f"{self._path}: the tensor {name} has the shape {stored.get_shape()} and config.json asks "
                f"for {shape}; use the config.json that came with the weights"
            )
        self.skip(name)
        part: Tensor = stored[tuple(slice(cut.begin, cut.end) for cut in cuts)]  # a view of the mapped file
        return part

    def skip(self, name: str) -> None:
        """Count a tensor as read, if it is there."""
        self._unread.discard(name)

    def are_equal(self, name: str, other: str) -> bool:
        """Whether two tensors have the same shape and numbers."""
        one, two = self._find(name), self._find(other)
        if one.get_shape() != two.get_shape() or one.get_dtype() != two.get_dtype():
            return False
        rows = range(0, one.get_shape()[0], _ROWS_COMPARED)
        return all(torch.equal(one[at : at + _ROWS_COMPARED], two[at : at + _ROWS_COMPARED]) for at in rows)

    def check_all_read(self) -> None:
        """Raise BadCheckpointError if tensors remain unread: config.json describes another model."""
        if self._unread:
            first, count = min(self._unread), len(self._unread)
            raise BadCheckpointError(
                f"{self._path}: config.json describes a model without the tensor {first}, one of {count} "
                "that would be left out; use the config.json that came with the weights"
            )

    def _add(self, file_name: str, file: Any) -> None:
        names = set(file.keys())
        if twice := names & self._places.keys():
            raise BadCheckpointError(
                f"{self._path / file_name} holds the tensor {min(twice)}, and so does another file "
                "beside it: keep one of them"
            )
        self._places |= dict.fromkeys(names, file)
        self._unread |= names

    def _find(self, name: str) -> Any:
        """Return safetensors' slice of the tensor, which reads parts of it."""
        stored = self._places[name].get_slice(name)
        if stored.get_dtype() not in STORED_TYPES:
            raise UnsupportedModelError(
                f"{self._path}: the tensor {name} is stored as {stored.get_dtype()}, which means nothing "
                "without its scales; quantised checkpoints are not supported yet: serve the unquantised one"
            )
        return stored


class CheckpointWeights:
    """A checkpoint's tensors, packed for the kernels as the model's constructor asks for them."""

    def __init__(self, reader: Reader, packer: Packer) -> None:
        self.device, self.names = packer.device, reader.names
        self._reader, self._packer = reader, packer

    def vector(self, name: str, size: int) -> Tensor:
        """Read the vector, as a copy."""
        return self._read_vector(name, whole(size))

    def matrix(self, names: Mapping[str, Cut], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        """Read each part and pack all as one matrix."""
        bias = self._bias(names) if has_bias else None
        outputs = sum(rows.size for rows in names.values())
        return self._packer.pack(self._parts(names.items(), inputs), outputs, inputs.size, bias)

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:
        """Read and pack rows of a table."""
        return self._packer.pack_table(self._reader.read(f"{name}.weight", rows, whole(inputs)))

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:
        """Read gate and product, and pack them as one matrix."""
        names = {gate: rows, up: rows}
        bias = self._bias(names) if has_bias else None
        return self._packer.pack_gated(self._parts(names.items(), whole(inputs)), 2 * rows.size, inputs, bias)

    def router(self, name: str, num_experts: int, inputs: int) -> Matrix:
        """Read and pack a router."""
        return self._packer.pack_router(
            self._reader.read(f"{name}.weight", whole(num_experts), whole(inputs))
        )

    def experts(self, names: Sequence[str], outputs: int, inputs: Cut) -> Experts:
        """Read each expert's part and pack all."""
        parts = self._parts(((name, whole(outputs)) for name in names), inputs)
        return self._packer.pack_experts(parts, len(names), outputs, inputs.size)

    def gated_experts(self, names: Sequence[tuple[str, str]], rows: Cut, inputs: int) -> Experts:
        """Read gate and product of each expert in turn, and pack all."""
        parts = self._parts(((name, rows) for pair in names for name in pair), whole(inputs))
        return self._packer.pack_gated_experts(parts, len(names), 2 * rows.size, inputs)

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

    def _parts(self, names: Iterable[tuple[str, Cut]], inputs: Cut) -> Iterator[Tensor]:
        for name, rows in names:
            yield self._reader.read(f"{name}.weight", rows, inputs)

    def _bias(self, names: Mapping[str, Cut]) -> Tensor:
        return torch.cat([self._read_vector(f"{name}.bias", rows) for name, rows in names.items()])

    def _read_vector(self, name: str, numbers: Cut) -> Tensor:
        stored = self._reader.read(name, numbers)
        # A copy: if the mapped file is cut short, a later read would kill the process.
        return torch.empty(stored.shape, dtype=self._packer.dtype, device=self.device).copy_(stored)


def _find_files(path: Path, names: Collection[str]) -> list[str]:
    """Return the files that hold the model, of the folder's files."""
    weights = choose_weights(names, _read_index(path / INDEX) if is_indexed(names) else None)
    if not weights:
        raise BadCheckpointError(f"{path} holds no *.safetensors file: only safetensors weights are read")
    return weights


def _read_index(index: Path) -> list[str]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise BadCheckpointError(f"{index} has no weight_map from tensors to files: download it again")
    names = sorted(set(places.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise BadCheckpointError(f"{index} points outside its folder: {outside[0]}")
    return names


def read_json(file: Path) -> dict[str, Any]:
    """Return a file's JSON object. Raises BadCheckpointError."""
    try:
        text = file.read_bytes()
        if fault := explain_pointer(str(file), text):
            raise BadCheckpointError(fault)
        content = json.loads(text)
    except (OSError, ValueError) as error:
        raise BadCheckpointError(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadCheckpointError(f"{file} is no JSON object")
    return content


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError as error:
        raise BadCheckpointError(f"{INDEX} names {file}, which is not there: download it") from error
    except (SafetensorError, OSError) as error:
        raise BadCheckpointError(
            f"{file} can't be read as safetensors ({error}): download it again"
        ) from error
