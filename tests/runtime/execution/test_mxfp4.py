"""gpt-oss as it is published: float blocks of all experts, widened bit for bit as transformers does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from millrace_fit.families.registry import declare
from millrace_fit.settings import WEIGHTS
from millrace_fit.shard import Cut
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.execution.weights.safetensors_files import Reader, read_json
from millrace_runtime.execution.weights.stored_reader import StoredReader
from millrace_runtime.execution.weights.unpacking import LARGEST_SCALE, widen_blocks
from testing.checkpoints.allocated import allocate_sizes, predict_sizes
from testing.checkpoints.models import read_facts
from tests.runtime.execution.greedy import check_preempted, prompt
from tests.runtime.execution.random_models import write_random

EXPERTS, WIDTH, INNER = 3, 64, 96
FIELDS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": WIDTH, "intermediate_size": INNER, "head_dim": 16,
    "num_attention_heads": 4, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": 24,
    "rope_theta": 1.5e5, "dtype": "bfloat16",
}  # fmt: skip
PUBLISHED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}
ROWS = {"gate_up_proj": 2 * INNER, "down_proj": WIDTH}
COLUMNS = {"gate_up_proj": WIDTH, "down_proj": INNER}
MLP = "model.layers.1.mlp.experts."


def make_blocks(projection: str) -> tuple[Tensor, Tensor]:
    blocks = torch.randint(0, 256, (EXPERTS, ROWS[projection], COLUMNS[projection] // 32, 16))
    return blocks.to(torch.uint8), torch.randint(120, 125, blocks.shape[:-1]).to(torch.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published model, and in `twin` what transformers makes of its experts."""
    twin = write_random(tmp_path / "model" / "twin", FIELDS)
    plain = {
        name: one.to(torch.bfloat16).contiguous()
        for name, one in load_file(twin / "model.safetensors").items()
    }
    published = dict(plain)
    for layer in (0, 1):
        for projection in ROWS:
            name = f"model.layers.{layer}.mlp.experts.{projection}"
            blocks, scales = make_blocks(projection)
            plain[name] = convert_moe_packed_tensors(blocks, scales)
            del published[name]
            published |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(plain, twin / "model.safetensors", metadata={"format": "pt"})
    save_file(published, twin.parent / "model.safetensors", metadata={"format": "pt"})
    config = read_json(twin / "config.json")
    del config["dtype"]  # the published ones have none
    for path, fields in ((twin, {}), (twin.parent, {"quantization_config": PUBLISHED})):
        (path / "config.json").write_text(json.dumps(config | fields))
        (path / "tokenizer.json").write_text("{}")
    return twin.parent


def test_each_number_and_each_scale_is_widened_as_in_transformers() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(16, 1, 16)  # each byte with each scale
    blocks = every.expand(16, LARGEST_SCALE + 1, 16)
    scales = torch.arange(LARGEST_SCALE + 1, dtype=torch.uint8).expand(16, -1)
    expected = convert_moe_packed_tensors(blocks[None], scales[None])[0].t()
    found = widen_blocks(blocks, scales)
    assert found.isfinite().all()
    assert torch.equal(found.view(torch.int16), expected.contiguous().view(torch.int16))
    exact = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].t()
    assert torch.equal(found.float(), exact)


@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "down_proj"])
def test_any_part_of_an_expert_is_read_from_both_forms(folder: Path, part: str) -> None:
    """Gate and factor lie in turn; plain experts have inputs first, published ones outputs."""
    outputs, inputs = (WIDTH, INNER) if part == "down_proj" else (INNER, WIDTH)
    both = []
    for path in (folder, folder / "twin"):
        reader = Reader(path)
        stored = StoredReader(reader, declare(read_json(path / "config.json")).quantization)
        read = stored.read(f"{MLP}2.{part}", Cut(outputs, 5, outputs), Cut(inputs, 32, inputs))
        assert isinstance(read, Tensor)
        both.append(read)
    assert torch.equal(*both)
    projection = "down_proj" if part == "down_proj" else "gate_up_proj"
    whole = load_file(folder / "twin" / "model.safetensors")[f"{MLP}{projection}"][2]
    step = slice(
        {"down_proj": None, "gate_proj": 0, "up_proj": 1}[part], None, None if part == "down_proj" else 2
    )
    assert torch.equal(both[0], whole[:, step].t()[5:, 32:])


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, {"kernels": "torch"}], ids=str)
def test_a_published_model_agrees_with_transformers(
    folder: Path, make_driver: Callable[..., Any], settings: dict[str, Any]
) -> None:
    check_preempted(folder / "twin", prompt(75, 0), make_driver(folder, **settings))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_its_widened_weights_are_reported_and_may_be_rounded(folder: Path, weights: str) -> None:
    reported = predict_sizes(folder, weights)
    assert reported == predict_sizes(folder / "twin", weights)
    assert allocate_sizes(folder, weights).weights == reported.weights


def test_its_facts_count_the_weights_of_both_forms(folder: Path) -> None:
    facts, twin = read_facts(folder), read_facts(folder / "twin")
    assert (facts.fault, facts.quantized, facts.served_type) == (None, (), "bfloat16")
    assert facts.stored == {"MXFP4": 2 * EXPERTS * 3 * INNER * WIDTH, "BF16": facts.stored["BF16"]}
    assert (facts.num_parameters, facts.shape) == (twin.num_parameters, twin.shape)


def change(folder: Path, name: str, make: Callable[[Tensor], Tensor] | None) -> None:
    """Replace a tensor of the second layer, or remove it."""
    tensors = load_file(folder / "model.safetensors")
    stored = tensors.pop(f"{MLP}{name}", torch.ones(EXPERTS, WIDTH, 2 * INNER, dtype=torch.bfloat16))
    if make is not None:
        tensors[f"{MLP}{name}"] = make(stored)
    save_file(tensors, folder / "model.safetensors")


def use(folder: Path, quantization: dict[str, Any] | None) -> None:
    """Replace what config.json says of the form."""
    config = read_json(folder / "config.json") | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))


def spoil(scales: Tensor) -> Tensor:
    scales[1, 3, 0] = 255
    return scales


def keep(folder: Path) -> None:
    """Store an expert's projection in both forms."""
    change(folder, "gate_up_proj", lambda plain: plain)


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a scale that is no number": (
        lambda path: change(path, "gate_up_proj_scales", spoil),
        "model.safetensors: the tensor model.layers.1.mlp.experts.gate_up_proj_scales has scales that are",
    ),
    "scales of other blocks": (
        lambda path: change(path, "down_proj_scales", lambda one: one[..., :-1].contiguous()),
        r"0.down_proj.weight_scales \(\S+experts.down_proj_scales in its file\) has the shape \[64, 2\]",
    ),
    "blocks of other experts": (
        lambda path: change(path, "down_proj_blocks", lambda one: one[:-1].contiguous()),
        r"the tensor model.layers.1.mlp.experts.down_proj_blocks has the shape \[2, 64, 3, 16\]",
    ),
    "blocks without scales": (
        lambda path: change(path, "down_proj_scales", None),
        "lack the tensor model.layers.1.mlp.experts.0.down_proj.weight_scales",
    ),
    "both forms": (
        keep,
        r"without the tensor \S+experts.0.gate_proj.weight \(\S+experts.gate_up_proj in its file\), one of 6",
    ),
    "plain experts by config.json": (
        lambda path: use(path, None),
        "gate_up_proj_blocks in its file.* is stored as weight_blocks, which means nothing without a quantiz",
    ),
    "experts that config.json leaves as they are": (
        lambda path: use(path, PUBLISHED | {"modules_to_not_convert": ["model.layers.1.mlp.experts"]}),
        "1.mlp.experts.gate_up_proj_blocks in its file.* and config.json leaves it unquantised",
    ),
    "plain experts, and blocks by config.json": (
        lambda path: save_file(load_file(path / "twin/model.safetensors"), path / "model.safetensors"),
        r"0.mlp.experts.gate_up_proj in its file.* is stored as BF16, and config.json says MXFP4 in groups",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_can_not_be_read_is_refused_in_words(
    folder: Path, make_driver: Callable[..., Any], fault: str
) -> None:
    damage, words = FAULTS[fault]
    damage(folder)
    with pytest.raises(ModelError, match=words) as refused:
        make_driver(folder)
    assert "\n" not in str(refused.value)
