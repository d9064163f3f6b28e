"""From a folder of config.json and safetensors to a model on the device."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from millrace_runtime.execution.errors import (
    BadCheckpointError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from millrace_runtime.models.config import LlamaConfig
from millrace_runtime.models.errors import ArchitectureError
from millrace_runtime.models.llama import Llama
from millrace_runtime.models.registry import find_architecture

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INDEX = "model.safetensors.index.json"


def read_config(path: Path) -> dict[str, Any]:
    """Return the folder's config.json. Raises ModelNotFoundError or BadCheckpointError."""
    if not path.is_dir():
        raise ModelNotFoundError(f"there is no folder {path}: give the path of a model's folder")
    config = path / "config.json"
    if not config.is_file():
        raise ModelNotFoundError(f"{path} holds no config.json: give a Hugging Face model's folder")
    return _read_json(config)


def find_model(path: Path, raw: Mapping[str, Any]) -> tuple[type[Llama], LlamaConfig]:
    """Return the model class and config. Raises UnsupportedModelError."""
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


def choose_dtype(name: str, raw: Mapping[str, Any], device: torch.device) -> torch.dtype:
    """Resolve "auto". On CPUs float32: bfloat16 products are slower there without special instructions."""
    if name == "auto":
        stored = raw.get("dtype", raw.get("torch_dtype"))
        return torch.bfloat16 if device.type == "cuda" and stored != "float32" else torch.float32
    if name not in DTYPES:
        raise ModelError(f'dtype "{name}" is not known: use "auto", {" or ".join(map(repr, DTYPES))}')
    return DTYPES[name]


class Checkpoint:
    """The tensors of a folder's safetensors files, mapped into memory and read when taken."""

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._path, self._dtype = path, dtype
        self._files = {name: _open(path / name) for name in _find_files(path)}
        self._places = {key: file for file in self._files.values() for key in file.keys()}  # noqa: SIM118

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a copy of a tensor in the model's type. Raises BadCheckpointError."""
        if name not in self._places:
            raise BadCheckpointError(
                f"{self._path}: the safetensors files lack the tensor {name}; download the model "
                "again, or correct config.json if it describes another model"
            )
        stored = self._places[name].get_tensor(name)
        if tuple(stored.shape) != shape:
            raise BadCheckpointError(
                f"{self._path}: the tensor {name} has the shape {list(stored.shape)} and config.json asks "
                f"for {list(shape)}; use the config.json that came with the weights"
            )
        # A copy: a mapped file that is cut short under us would kill the process at a later read.
        return torch.empty(shape, dtype=self._dtype, device=self.device).copy_(stored)


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
