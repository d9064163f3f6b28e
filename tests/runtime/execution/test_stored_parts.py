"""Whatever types and shapes a look accepts in a quantised matrix, the reader reads, and it refuses others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from millrace_fit.quantization.rules import Quantization, Rule
from millrace_fit.quantization.scheme import Kind, Packing, Scheme, StoredPart
from millrace_fit.shard import whole
from millrace_kernels.linear.stored import StoredMatrix
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.execution.weights.stored_reader import StoredReader

OUTPUTS, INPUTS = 40, 128
TYPES = {
    "F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64,
    "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64,
}  # fmt: skip
SCHEMES = (
    Scheme(Kind.FP8, Packing.PLAIN),
    Scheme(Kind.FP8, Packing.PLAIN, None),
    Scheme(Kind.FP8, Packing.PLAIN, 32, 64, scale="weight_scale_inv"),
    Scheme(Kind.INT8, Packing.PLAIN),
    Scheme(Kind.INT8, Packing.COMPRESSED),
    Scheme(Kind.INT4, Packing.COMPRESSED, group=32, has_zeros=True, is_ordered=True),
    Scheme(Kind.INT4, Packing.COMPRESSED),
    Scheme(Kind.INT4, Packing.AWQ, group=64, has_zeros=True),
    Scheme(Kind.INT4, Packing.GPTQ, group=64, has_zeros=True, is_ordered=True),
    Scheme(Kind.INT4, Packing.GPTQ_V2, has_zeros=True),
)
Written = tuple[str, tuple[int, ...]]


def make(scheme: Scheme, part: StoredPart, written: Written) -> torch.Tensor:
    """Zeros, but for scales and the groups of inputs."""
    dtype, shape = written
    if part.ending.endswith("g_idx") and shape == (INPUTS,):
        return (torch.arange(INPUTS) // (scheme.group or INPUTS)).to(TYPES[dtype])
    ones = part.ending in {"weight_scale", "weight_scale_inv", "scales"}
    return (torch.ones if ones else torch.zeros)(shape, dtype=torch.float32).to(TYPES[dtype])


def read(folder: Path, scheme: Scheme, changed: StoredPart, written: Written) -> Any:
    tensors = {}
    for part in scheme.list_parts(OUTPUTS, INPUTS):
        usual = (part.types[0], part.shapes[0])
        tensors[f"m.{part.ending}"] = make(scheme, part, written if part == changed else usual)
    save_file(tensors, folder / "model.safetensors")
    reader = Reader(folder)
    found = StoredReader(reader, Quantization("any", (Rule(None, scheme),))).read(
        "m", whole(OUTPUTS), whole(INPUTS)
    )
    reader.check_all_read()
    return found


def list_accepted(part: StoredPart) -> Iterator[Written]:
    yield from ((dtype, shape) for dtype in part.types for shape in part.shapes)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda one: f"{one} {one.packing} {one.rows}")
def test_what_a_look_accepts_is_read(tmp_path: Path, scheme: Scheme) -> None:
    for part in scheme.list_parts(OUTPUTS, INPUTS):
        for written in list_accepted(part):
            found = read(tmp_path, scheme, part, written)
            assert isinstance(found, StoredMatrix)
            assert found.widen().shape == (OUTPUTS, INPUTS), (part.ending, written)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda one: f"{one} {one.packing} {one.rows}")
def test_what_a_look_refuses_is_not_read(tmp_path: Path, scheme: Scheme) -> None:
    for part in scheme.list_parts(OUTPUTS, INPUTS):
        if part.is_read and part.is_required:
            for written in (("F64", part.shapes[0]), (part.types[0], (*part.shapes[0], 2))):
                with pytest.raises(ModelError):
                    read(tmp_path, scheme, part, written)
