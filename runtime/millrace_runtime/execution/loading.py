"""Reads a model's folder, and chooses device, type and format by it and the settings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from millrace_fit.accelerators import NO_GPU
from millrace_fit.dtypes import choose_served_type
from millrace_fit.errors import ArchitectureError
from millrace_fit.shard import ALONE, Shard
from millrace_kernels.step import Format
from millrace_runtime.execution.errors import (
    BadCheckpointError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from millrace_runtime.models.model import Architecture
from millrace_runtime.models.registry import find_architecture

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORMATS = {"FromCheckpoint": Format.DENSE, "Int8": Format.INT8, "Int4": Format.INT4}


def read_config(path: Path) -> dict[str, Any]:
    """Return the folder's config.json. Raises ModelNotFoundError or BadCheckpointError."""
    if not path.is_dir():
        raise ModelNotFoundError(f"there is no folder {path}: give the path of a model's folder")
    config = path / "config.json"
    if not config.is_file():
        raise ModelNotFoundError(f"{path} holds no config.json: give a Hugging Face model's folder")
    return read_json(config)


def find_model(path: Path, raw: Mapping[str, Any], shard: Shard = ALONE) -> Architecture:
    """Return a shard of the architecture that config.json describes. Raises UnsupportedModelError."""
    try:
        return find_architecture(raw, shard)
    except ArchitectureError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error


def choose_device(name: str, shard: Shard = ALONE) -> torch.device:
    """Return a shard's device; "auto" is CUDA where there is one. Raises ModelError where it is missing."""
    if name not in {"auto", "cpu", "cuda"}:
        raise ModelError(f'device "{name}" is not known: use "auto", "cpu" or "cuda"')
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelError(
            f"--device cuda: {NO_GPU} ({explain_no_gpu()}): give the replica one, or "
            "serve on CPUs with --device cpu"
        )
    if (found := torch.cuda.device_count()) < shard.count:
        raise ModelError(
            f"--tensor-parallel {shard.count} takes a GPU for each worker and torch finds {found}: lower it, "
            "or give the replica more GPUs"
        )
    return torch.device("cuda", shard.index)


def explain_no_gpu() -> str:
    """Return why torch can use no GPU, in its own words."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts
        return " ".join(str(error).split(". ")[0].split())
    return "it sees none"


def choose_dtype(name: str, raw: Mapping[str, Any], stored: torch.dtype) -> torch.dtype:
    """Return the type to serve. "auto" is config.json's, or that of the stored weights if it has none."""
    if name != "auto":
        if name not in DTYPES:
            raise ModelError(f'dtype "{name}" is not known: use "auto", {" or ".join(map(repr, DTYPES))}')
        return DTYPES[name]
    try:
        return DTYPES[choose_served_type(raw, type_name(stored))]
    except ArchitectureError as error:
        raise UnsupportedModelError(str(error)) from error


def type_name(dtype: torch.dtype) -> str:
    """Return a type's name as config.json writes it."""
    return str(dtype).removeprefix("torch.")


def choose_format(weights: str, device: torch.device) -> Format:
    """Return the matrices' format. Raises ModelError for one that the device has no kernels for."""
    if weights not in FORMATS:
        raise ModelError(f'weights "{weights}" are not known: use {", ".join(map(repr, FORMATS))}')
    if device.type == "cuda" and FORMATS[weights] is not Format.DENSE:
        raise ModelError(
            f"--weights {weights} has no kernels for GPUs yet: leave it out "
            "(spec.model.quantization.weights: FromCheckpoint), or serve on CPUs with --device cpu"
        )
    return FORMATS[weights]


def read_json(file: Path) -> dict[str, Any]:
    """Return a file's JSON object. Raises BadCheckpointError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpointError(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadCheckpointError(f"{file} is no JSON object")
    return content
