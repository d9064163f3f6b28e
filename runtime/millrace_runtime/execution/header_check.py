"""Compares a checkpoint's headers with config.json before it is read, as a look before its pods has done."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import declare
from millrace_fit.module_schemes import find_schemes
from millrace_fit.tensors import find_fault
from millrace_runtime.execution.errors import BadCheckpointError, UnsupportedModelError
from millrace_runtime.execution.weights.safetensors_files import Reader


def check_tensors(path: Path, raw: Mapping[str, Any], reader: Reader) -> None:
    """Raise BadCheckpointError or UnsupportedModelError for tensors that don't fit config.json."""
    try:
        declared = declare(raw).fit_to(reader.names)
        if fault := find_fault(declared, reader.headers):
            raise BadCheckpointError(f"{path}: {fault}")
        find_schemes(declared)
    except ArchitectureError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
