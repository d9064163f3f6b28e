"""Checkpoints whose files join projections: every declared tensor is the one that lay alone before."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from millrace_fetch.cli.local_model import read_local_head
from millrace_fetch.plan.head import describe_head
from millrace_fit.files.dtypes import STORED_TYPES
from millrace_fit.shard import whole
from millrace_runtime.execution.weights.safetensors_files import Reader
from testing.checkpoints.models import write_model
from testing.checkpoints.quantized import FORMS, write_quantized
from tests.fit.quantized import SMALL

PHI3: dict[str, Any] = SMALL | {"architectures": ["Phi3ForCausalLM"], "head_dim": "-"}
ALL_TYPES = (*STORED_TYPES, "I32", "I64", "I8", "F8_E4M3")
JOINED = {"self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj": ("gate_proj", "up_proj")}
ON_COLUMNS = ("qweight", "qzeros", "scales")
ALIKE = ("g_idx", "weight_g_idx", "weight_shape")


def join(folder: Path, into: Path) -> dict[str, Tensor]:
    """Write the checkpoint with joined projections, and return the tensors that it must be read as."""
    tensors = load_file(folder / "model.safetensors")
    apart = dict(tensors)
    for layer in range(SMALL["num_hidden_layers"]):
        for joined, parts in JOINED.items():
            around, module = (
                f"model.layers.{layer}.{joined.split('.')[0]}.",
                f"model.layers.{layer}.{joined}.",
            )
            first = f"{around}{parts[0]}."
            for name in [name for name in tensors if name.startswith(first)]:
                ending = name.removeprefix(first)
                names = [f"{around}{part}.{ending}" for part in parts]
                found = [tensors.pop(one) for one in names]
                if ending in ALIKE or found[0].numel() == 1:
                    tensors[module + ending] = found[0]
                    apart |= dict.fromkeys(names, found[0])
                else:
                    whole_tensor = torch.cat(
                        [one.view(_as_bytes(one)) for one in found], int(ending in ON_COLUMNS)
                    )
                    tensors[module + ending] = whole_tensor.view(found[0].dtype)
    into.mkdir()
    config = json.loads((folder / "config.json").read_text()) | {"architectures": PHI3["architectures"]}
    (into / "config.json").write_text(json.dumps(config))
    (into / "tokenizer.json").write_text("{}")
    save_file(tensors, into / "model.safetensors")
    return apart


def _as_bytes(tensor: Tensor) -> torch.dtype:
    """torch.cat knows no 8-bit floats."""
    return torch.int8 if tensor.element_size() == 1 else tensor.dtype


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), SMALL)


@pytest.mark.parametrize("form", [None, *FORMS])
def test_joined_projections_are_read_apart(plain: Path, tmp_path: Path, form: str | None) -> None:
    folder = plain if form is None else write_quantized(plain, tmp_path / "quantized", FORMS[form])
    expected = join(folder, tmp_path / "joined")
    facts = describe_head(read_local_head(tmp_path / "joined"))
    assert facts.fault is None
    reader = Reader(tmp_path / "joined")
    assert set(reader.names) == expected.keys()
    for name, tensor in expected.items():
        read = reader.read(name, *map(whole, tensor.shape), types=ALL_TYPES)
        assert torch.equal(read.view(_as_bytes(read)), tensor.view(_as_bytes(tensor))), name
    reader.check_all_read()


def test_what_cannot_be_cut_between_the_projections_is_refused(plain: Path, tmp_path: Path) -> None:
    join(plain, tmp_path / "joined")
    weights = load_file(tmp_path / "joined" / "model.safetensors")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    save_file(weights | {name: weights[name][:-1].clone()}, tmp_path / "joined" / "model.safetensors")
    facts = describe_head(read_local_head(tmp_path / "joined"))
    assert facts.fault is not None
    assert f"{name} has the shape [511, 256], and config.json asks for another one" in facts.fault


def test_a_projection_that_is_stored_twice_is_refused(plain: Path, tmp_path: Path) -> None:
    """Neither of the two is left out in silence."""
    join(plain, tmp_path / "joined")
    weights = load_file(tmp_path / "joined" / "model.safetensors")
    alone = {"model.layers.1.self_attn.q_proj.weight": torch.zeros(256, 256)}
    save_file(weights | alone, tmp_path / "joined" / "model.safetensors")
    facts = describe_head(read_local_head(tmp_path / "joined"))
    assert facts.fault is not None
    assert "without the tensor model.layers.1.self_attn.qkv_proj.weight, one of 1" in facts.fault
