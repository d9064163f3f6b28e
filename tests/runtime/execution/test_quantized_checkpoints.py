"""Quantised checkpoints as they are published: read bit for bit, and served as their dequantised twins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from millrace_fit.families.registry import declare
from millrace_fit.shard import Cut, whole
from millrace_kernels.linear.stored import StoredMatrix
from millrace_runtime.execution.safetensors_files import Reader, read_json
from millrace_runtime.execution.stored_reader import StoredReader
from testing.checkpoints.quantized import FORMS, write_quantized
from tests.runtime.execution.greedy import check_preempted, prompt
from tests.runtime.execution.random_models import write_random

WIDTHS: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("plain"), WIDTHS)


def read(folder: Path, name: str, rows: Cut, columns: Cut) -> torch.Tensor:
    reader = StoredReader(Reader(folder), declare(read_json(folder / "config.json")).quantization)
    part = reader.read(name, rows, columns)
    assert isinstance(part, StoredMatrix)
    return part.widen()


@pytest.mark.parametrize("name", FORMS)
def test_weights_are_those_of_the_format_bit_for_bit(plain: Path, tmp_path: Path, name: str) -> None:
    folder = write_quantized(plain, tmp_path, FORMS[name])
    for matrix, weight in load_file(folder / "twin" / "model.safetensors").items():
        if not matrix.endswith("_proj.weight"):
            continue
        outputs, inputs = weight.shape
        found = read(folder, matrix.removesuffix(".weight"), whole(outputs), whole(inputs))
        assert torch.equal(found, weight), matrix
        half = Cut(outputs, outputs // 2, outputs)
        assert torch.equal(read(folder, matrix.removesuffix(".weight"), half, whole(inputs)), weight[half.begin :])
        if "order" not in name:
            columns = Cut(inputs, inputs // 2, inputs)
            found = read(folder, matrix.removesuffix(".weight"), whole(outputs), columns)
            assert torch.equal(found, weight[:, columns.begin :]), matrix


@pytest.mark.parametrize("name", FORMS)
def test_a_quantised_model_agrees_with_its_dequantised_twin(
    plain: Path, tmp_path: Path, make_driver: Callable[..., Any], name: str
) -> None:
    folder = write_quantized(plain, tmp_path, FORMS[name])
    tolerance = 2e-3 if "FP8" in name else 0.2  # inputs of integers are rounded, too
    check_preempted(folder / "twin", prompt(75, 0), make_driver(folder), tolerance=tolerance)
