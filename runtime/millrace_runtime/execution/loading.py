"""From a folder of config.json and safetensors to a model on the device."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from millrace_kernels.step import Format, Matrix, Packer
from millrace_runtime.execution.errors import (
    BadCheckpointError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from millrace_runtime.models.errors import ArchitectureError
from millrace_runtime.models.model import Architecture
from millrace_runtime.models.registry import find_architecture

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORMATS = {"FromCheckpoint": Format.DENSE, "Int8": Format.INT8, "Int4": Format.INT4}
STORED_TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Types whose numbers are the weights themselves."""
INDEX = "model.safetensors.index.json"


def read_config(path: Path) -> dict[str, Any]:
    """Return the folder's config.json. Raises ModelNotFoundError or BadCheckpointError."""
    if not path.is_dir():
        raise ModelNotFoundError(f"there is no folder {path}: give the path of a model's folder")
    config = path / "config.json"
    if not config.is_file():
        raise ModelNotFoundError(f"{path} holds no config.json: give a Hugging Face model's folder")
    return _read_json(config)


def find_model(path: Path, raw: Mapping[str, Any]) -> Architecture:
    """Return what config.json describes. Raises UnsupportedModelError."""
    try:
        return find_architecture(raw)
    except ArchitectureError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error


def choose_device(name: str) -> torch.device:
    """Resolve "auto". Raises ModelError for a device that is not there."""
    if name not in {"auto", "cpu", "cuda"}:
        raise ModelError(f'device "{name}" is not known: use "auto", "cpu" or "cuda"')
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelError('device "cuda" was asked for and torch finds no CUDA device: use "cpu" or "auto"')
    return torch.device("cuda")


def choose_dtype(name: str, raw: Mapping[str, Any]) -> torch.dtype:
    """Resolve "auto": the checkpoint's own type, and bfloat16 for float16, which we do not compute in."""
    if name == "auto":
        stored = raw.get("dtype", raw.get("torch_dtype")) or "float32"
        return torch.float32 if stored == "float32" else torch.bfloat16
    if name not in DTYPES:
        raise ModelError(f'dtype "{name}" is not known: use "auto", {" or ".join(map(repr, DTYPES))}')
    return DTYPES[name]


def choose_format(weights: str, device: torch.device) -> Format:
    """Return what matrices are kept in. Raises ModelError for what the device has no kernels for."""
    if weights not in FORMATS:
        raise ModelError(f'weights "{weights}" are not known: use {", ".join(map(repr, FORMATS))}')
    if device.type == "cuda" and FORMATS[weights] is not Format.DENSE:
        raise ModelError(
            f"--weights {weights} has no kernels for GPUs yet: leave it out "
            "(spec.model.quantization.weights: FromCheckpoint), or serve on CPUs with --device cpu"
        )
    return FORMATS[weights]


class Reader:
    """The tensors of a folder's safetensors files, mapped into memory and read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = {name: _open(path / name) for name in _find_files(path)}
        self._places = {key: file for file in self._files.values() for key in file.keys()}  # noqa: SIM118

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor in the type it is stored in. Raises BadCheckpointError or UnsupportedModelError."""
        if name not in self._places:
            raise BadCheckpointError(
                f"{self._path}: the safetensors files lack the tensor {name}; download the model "
                "again, or correct config.json if it describes another model"
            )
        stored: Tensor = self._places[name].get_tensor(name)
        if tuple(stored.shape) != shape:
            raise BadCheckpointError(
                f"{self._path}: the tensor {name} has the shape {list(stored.shape)} and config.json asks "
                f"for {list(shape)}; use the config.json that came with the weights"
            )
        if stored.dtype not in STORED_TYPES:
            raise UnsupportedModelError(
                f"{self._path}: the tensor {name} is stored as {_type_name(stored)}, which means nothing "
                "without its scales; quantised checkpoints are not supported yet: serve the unquantised one"
            )
        return stored


class CheckpointWeights:
    """A checkpoint's tensors, packed for one path as the model's constructor asks for them."""

    def __init__(self, reader: Reader, packer: Packer) -> None:
        self.device = packer.device
        self._reader, self._packer = reader, packer

    def vector(self, name: str, size: int) -> Tensor:
        """See Weights."""
        return self._copy(self._reader.read(name, (size,)))

    def matrix(self, names: Mapping[str, int], inputs: int, *, has_bias: bool = False) -> Matrix:
        """See Weights."""
        bias = self._bias(names) if has_bias else None
        return self._packer.pack(self._parts(names, inputs), sum(names.values()), inputs, bias)

    def table(self, name: str, rows: int, inputs: int) -> Matrix:
        """See Weights."""
        return self._packer.pack_table(self._reader.read(f"{name}.weight", (rows, inputs)))

    def gated_matrix(self, gate: str, up: str, rows: int, inputs: int, *, has_bias: bool = False) -> Matrix:
        """See Weights."""
        names = {gate: rows, up: rows}
        bias = self._bias(names) if has_bias else None
        return self._packer.pack_gated(self._parts(names, inputs), 2 * rows, inputs, bias)

    def _parts(self, names: Mapping[str, int], inputs: int) -> Iterator[Tensor]:
        for name, rows in names.items():
            yield self._reader.read(f"{name}.weight", (rows, inputs))

    def _bias(self, names: Mapping[str, int]) -> Tensor:
        return torch.cat([self.vector(f"{name}.bias", rows) for name, rows in names.items()])

    def _copy(self, stored: Tensor) -> Tensor:
        # A copy: a mapped file that is cut short under us would kill the process at a later read.
        return torch.empty(stored.shape, dtype=self._packer.dtype, device=self.device).copy_(stored)


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _find_files(path: Path) -> list[str]:
    if (path / INDEX).is_file():
        names = sorted(set(_read_json(path / INDEX).get("weight_map", {}).values()))
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise BadCheckpointError(f"{path / INDEX} points outside its folder: {outside[0]}")
    else:
        names = sorted(file.name for file in path.glob("*.safetensors"))
    if not names:
        raise BadCheckpointError(f"{path} holds no *.safetensors file: only safetensors weights are read")
    return names


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError as error:
        raise BadCheckpointError(f"{INDEX} names {file}, which is not there: download it") from error
    except (SafetensorError, OSError) as error:
        raise BadCheckpointError(
            f"{file} can't be read as safetensors ({error}): download it again"
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpointError(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadCheckpointError(f"{file} is no JSON object")
    return content
