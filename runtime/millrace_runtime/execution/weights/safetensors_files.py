"""The safetensors files of a checkpoint: found in its folder, mapped into memory, each tensor read once."""

import json
import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from millrace_fit.declaration.layout import Source
from millrace_fit.families.registry import locate_tensors
from millrace_fit.files.dtypes import STORED_TYPES, choose_stored_type
from millrace_fit.files.headers import StoredTensor
from millrace_fit.files.needed import (
    CONFIG,
    INDEX,
    choose_weights,
    explain_choice,
    explain_pointer,
    is_indexed,
)
from millrace_fit.shard import Cut
from millrace_runtime.execution.errors import BadCheckpointError, UnsupportedModelError

_ROWS_COMPARED = 1024
"""Of a tied head and its embedding at once: the first difference ends the comparison."""


class _Place(NamedTuple):
    """Where a tensor lies."""

    file: Any
    """As safetensors has opened it."""
    file_name: str
    source: Source
    """In the file."""

    @property
    def dtype(self) -> str:
        """The type's name in the header."""
        dtype: str = self._slice.get_dtype()
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the family declares."""
        return self.source.find_shape(self.stored_shape)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the header."""
        return tuple(self._slice.get_shape())

    def read(self, *parts: slice) -> Tensor:
        """Return a part, cut along each axis. It may be a view of the mapped file."""
        source, cuts = self.source, list(parts)
        if not self.shape:
            whole: Tensor = self.file.get_tensor(source.name)
            return whole
        if source.end is not None:
            cut = cuts[source.axis]
            begin, end = (source.begin + source.step * row for row in (cut.start, cut.stop))
            cuts[source.axis] = slice(begin, max(begin, end - source.step + 1))
        if source.is_turned:
            cuts.reverse()
        index = cuts if source.expert is None else [source.expert, *cuts]
        read: Tensor = self._slice[tuple(index)]
        read = read.t() if source.is_turned else read
        return read[(slice(None),) * source.axis + (slice(None, None, source.step),)]

    def read_whole(self) -> Tensor:
        """Return the whole tensor."""
        return self.read(*(slice(0, size) for size in self.shape))

    @property
    def _slice(self) -> Any:
        return self.file.get_slice(self.source.name)


class Reader:
    """The tensors of a folder's safetensors files, mapped into memory and read on demand.

    Their names are those of the family in config.json, whichever of its spellings the files have.
    """

    def __init__(self, path: Path) -> None:
        """Raises BadCheckpointError if files are missing, damaged or hold the same tensor twice."""
        self._path = path
        self._places: dict[str, _Place] = {}
        names = frozenset(file.name for file in path.iterdir() if file.is_file())
        self.choice = explain_choice(names)
        """Which of two sets of weights is read, in a sentence; None where there is only one."""
        for name in _find_files(path, names):
            self._add(name, _open(path / name))
        if CONFIG in names:
            stored = {name: place.shape for name, place in self._places.items()}
            sources = locate_tensors(read_json(path / CONFIG), stored)
            self._places = {
                name: self._places[source.name]._replace(source=source) for name, source in sources.items()
            }
        self._unread = set(self._places)

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._places.keys()

    @property
    def headers(self) -> dict[str, StoredTensor]:
        """Type and shape of each tensor, by name."""
        return {
            name: place.source.cut(StoredTensor(place.dtype, place.stored_shape), name)
            for name, place in self._places.items()
        }

    @property
    def stored_type(self) -> torch.dtype:
        """The stored type of most weights."""
        sizes: Counter[str] = Counter()
        for place in self._places.values():
            sizes[place.dtype] += math.prod(place.shape)
        stored: torch.dtype = getattr(torch, choose_stored_type(sizes))
        return stored

    def read(self, name: str, *cuts: Cut, types: Collection[str] = STORED_TYPES) -> Tensor:
        """Return a part of a tensor, cut along each axis, in its stored type, which is one of `types`.

        Raises BadCheckpointError or UnsupportedModelError.
        """
        stored, shape = self._find(name, types), [cut.total for cut in cuts]
        if list(stored.shape) != shape:
            raise BadCheckpointError(
                f"{self.find_place(name)} has the shape {list(stored.shape)} and config.json asks "
                f"for {shape}; use the config.json that came with the weights"
            )
        self.skip(name)
        return stored.read(*(slice(cut.begin, cut.end) for cut in cuts))

    def read_scalar(self, name: str) -> Tensor:
        """Return a tensor of a single number as float32 [1, 1]. Raises BadCheckpointError."""
        if math.prod(shape := self.find_shape(name)) != 1:
            raise BadCheckpointError(
                f"{self.find_place(name)} has the shape {shape}, and one number is needed; use the "
                "config.json that came with the weights"
            )
        stored = self._find(name, STORED_TYPES)
        self.skip(name)
        return stored.read_whole().float().view(1, 1)

    def is_unread(self, name: str) -> bool:
        """Whether a tensor is there that was neither read nor skipped."""
        return name in self._unread

    def read_whole(self, name: str) -> Tensor:
        """Return a tensor of any shape and type in float32."""
        self.skip(name)
        return self._places[name].read_whole().float()

    def find_shape(self, name: str) -> list[int]:
        """Return a tensor's shape. Raises BadCheckpointError if it is missing."""
        return list(self._place(name).shape)

    def find_place(self, name: str) -> str:
        """Return the file that has a tensor, and the tensor's name there, in words."""
        place = self._place(name)
        return f"{self._path / place.file_name}: the tensor {place.source.name}"

    def skip(self, name: str) -> None:
        """Count a tensor as read, if it is there."""
        self._unread.discard(name)

    def are_equal(self, name: str, other: str) -> bool:
        """Whether two tensors have the same shape and numbers."""
        one, two = self._find(name, STORED_TYPES), self._find(other, STORED_TYPES)
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        num_rows, *others = one.shape
        columns = [slice(0, size) for size in others]
        begins = range(0, num_rows, _ROWS_COMPARED)
        cuts = (slice(begin, min(begin + _ROWS_COMPARED, num_rows)) for begin in begins)
        return all(torch.equal(one.read(cut, *columns), two.read(cut, *columns)) for cut in cuts)

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
        self._places |= {name: _Place(file, file_name, Source(name)) for name in names}

    def _find(self, name: str, types: Collection[str]) -> _Place:
        stored = self._place(name)
        if stored.dtype not in types:
            raise UnsupportedModelError(
                f"{self.find_place(name)} is stored as {stored.dtype}, and by config.json it "
                f"should be {' or '.join(types)}: use the config.json that came with the weights, with the "
                "quantization_config that says how they are stored"
            )
        return stored

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise BadCheckpointError(
                f"{self._path}: the safetensors files lack the tensor {name}; download the model "
                "again, or correct config.json if it describes another model"
            )
        return self._places[name]


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
