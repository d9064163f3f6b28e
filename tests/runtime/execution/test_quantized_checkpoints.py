"""Quantised checkpoints as they are published: read bit for bit, and served as their dequantised twins."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from millrace_fit.families.registry import declare
from millrace_fit.shard import Cut, whole
from millrace_kernels.linear.stored import StoredMatrix
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.execution.weights.safetensors_files import Reader, read_json
from millrace_runtime.execution.weights.stored_reader import StoredReader
from testing.checkpoints.quantized import FORMS, fp8_blocks, write_quantized
from tests.runtime.execution.greedy import check_preempted, prompt
from tests.runtime.execution.random_models import write_random

WIDTHS: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_random(tmp_path_factory.mktemp("plain"), WIDTHS)
    tensors = load_file(folder / "model.safetensors")
    for weight in tensors.values():
        weight[1] = weight[1].abs()  # a zero point of 0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


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
        assert torch.equal(
            read(folder, matrix.removesuffix(".weight"), half, whole(inputs)), weight[half.begin :]
        )
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


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("name", [name for name in FORMS if name.startswith("compressed-tensors")])
def test_transformers_means_the_same_by_it(plain: Path, tmp_path: Path, name: str) -> None:
    """It multiplies in the type of the scales, which rounds once; ours are widened first."""
    folder = write_quantized(plain, tmp_path, FORMS[name])
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
    ).state_dict()
    for matrix, weight in load_file(folder / "twin" / "model.safetensors").items():
        if matrix.endswith("_proj.weight"):
            scales = load_file(folder / "model.safetensors")[f"{matrix}_scale"]
            assert torch.equal(theirs[matrix], weight.to(scales.dtype).float()), matrix


@pytest.mark.parametrize("block", [32, 64])
def test_transformers_means_the_same_by_blocks_of_fp8(plain: Path, tmp_path: Path, block: int) -> None:
    """Its own class, as its loader needs accelerate. It takes whole blocks alone, as 64 and 192 have."""
    folder = write_quantized(plain, tmp_path, fp8_blocks(block))
    stored = load_file(folder / "model.safetensors")
    for scale in [name for name in stored if name.endswith("_scale_inv")]:
        name = scale.removesuffix("_scale_inv")
        theirs = Fp8Dequantize(None).convert({"weight": stored[name], "weight_scale_inv": stored[scale]})
        rows, columns = map(whole, stored[name].shape)
        ours = read(folder, name.removesuffix(".weight"), rows, columns)
        assert torch.equal(ours, theirs["weight"]), name


def change(folder: Path, **fields: Any) -> None:
    """Change quantization_config."""
    config = read_json(folder / "config.json")
    config["quantization_config"] |= fields
    (folder / "config.json").write_text(json.dumps(config))


def forget(folder: Path) -> None:
    """Remove quantization_config."""
    config = read_json(folder / "config.json")
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))


def test_projections_that_are_left_out_lie_beside_quantised_ones(
    plain: Path, tmp_path: Path, make_driver: Callable[..., Any]
) -> None:
    form = FORMS["compressed-tensors FP8 of channels"]
    folder = write_quantized(plain, tmp_path, form, left_out=("k_proj", "0.self_attn.q_proj"))
    change(folder, ignore=["re:.*k_proj$", "model.layers.0.self_attn.q_proj", "lm_head"])
    check_preempted(folder / "twin", prompt(75, 0), make_driver(folder))


EXPERTS: dict[str, Any] = WIDTHS | {
    "model_type": "qwen3_moe", "moe_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 8,
}  # fmt: skip
ONE_EXPERT = EXPERTS | {"num_experts": 1, "num_experts_per_tok": 1}
HEAD, ROUTER = "lm_head.weight", "mlp.gate.weight"
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "biases": ("GPTQ", WIDTHS | {"model_type": "qwen2"}, {}, ()),
    "a head that config.json names": ("GPTQ", WIDTHS, {"lm_head": True}, (HEAD,)),
    "a head that no config names": ("AWQ", WIDTHS, {}, (HEAD,)),
    "experts, and a router that no config names": ("AWQ", EXPERTS, {}, (ROUTER,)),
    "experts in blocks": ("FP8 in blocks", EXPERTS | {"num_experts_per_tok": 3}, {}, ()),
    "one expert": ("AWQ", ONE_EXPERT, {}, ()),
    "one expert in blocks": ("FP8 in blocks", ONE_EXPERT, {}, ()),
    "a router in blocks": ("FP8 in blocks", EXPERTS | {"num_experts_per_tok": 3}, {}, (ROUTER,)),
}
"""Form, model, more fields of config.json, and more quantised modules.

With numbers of 4 bits all experts are chosen: rounded inputs would choose others where scores are close.
"""


@pytest.mark.parametrize("model", MODELS)
def test_other_models_agree_with_their_dequantised_twins(
    tmp_path: Path, make_driver: Callable[..., Any], model: str
) -> None:
    name, changes, fields, also = MODELS[model]
    plain = write_random(tmp_path / "plain", changes | {"tie_word_embeddings": False})
    folder = write_quantized(plain, tmp_path / "model", FORMS[name], also=also)
    change(folder, **fields)
    tolerance = 2e-3 if "FP8" in name else 0.2
    check_preempted(folder / "twin", prompt(75, 0), make_driver(folder), tolerance=tolerance)


def test_an_order_of_each_expert_is_refused_as_by_a_look(
    tmp_path: Path, make_driver: Callable[..., Any]
) -> None:
    plain = write_random(tmp_path / "plain", EXPERTS)
    folder = write_quantized(plain, tmp_path / "model", FORMS["GPTQ with an order"])
    with pytest.raises(
        ModelError, match=r"experts.0.gate_proj take inputs in any order \(desc_act, actorder"
    ):
        make_driver(folder)


def test_modelopts_own_file_says_the_same_as_config_json(
    plain: Path, tmp_path: Path, make_driver: Callable[..., Any]
) -> None:
    folder = write_quantized(plain, tmp_path, FORMS["FP8, static"])
    forget(folder)
    said = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    (folder / "hf_quant_config.json").write_text(json.dumps(said))
    check_preempted(folder / "twin", prompt(75, 0), make_driver(folder))


@pytest.mark.parametrize(
    "name", ["AWQ", "FP8 in blocks", "compressed-tensors INT8", "GPTQ v2 with zero points"]
)
def test_workers_share_a_quantised_model(
    plain: Path, tmp_path: Path, make_driver: Callable[..., Any], name: str
) -> None:
    folder = write_quantized(plain, tmp_path, FORMS[name])
    tolerance = 2e-3 if "FP8" in name else 0.2
    check_preempted(folder / "twin", prompt(75, 0), make_driver(folder, workers=2), tolerance=tolerance)


def spoil(name: str, number: float) -> Callable[[Path], None]:
    """Return what sets one number of a tensor."""

    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[f"model.layers.1.mlp.down_proj.{name}"].view(-1)[3:4].fill_(number)
        save_file(tensors, folder / "model.safetensors")

    return rewrite


def add(name: str, tensor: torch.Tensor) -> Callable[[Path], None]:
    """Return what adds a tensor to a matrix."""

    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[f"model.layers.1.mlp.down_proj.{name}"] = tensor
        save_file(tensors, folder / "model.safetensors")

    return rewrite


def test_an_order_counts_even_if_config_json_denies_it(
    plain: Path, tmp_path: Path, make_driver: Callable[..., Any]
) -> None:
    """As in AutoGPTQ, which always follows g_idx."""
    folder = write_quantized(plain, tmp_path, FORMS["GPTQ with an order"])
    change(folder, desc_act=False)
    check_preempted(folder / "twin", prompt(75, 0), make_driver(folder), tolerance=0.2)


PLACE = r"/model\.safetensors: the tensor model\.layers\.1\.mlp\.down_proj\."
"""The file and the tensor, which an owner can then look at."""
FAULTS: dict[str, tuple[str, Callable[[Path], None], dict[str, Any], str]] = {
    "infinite": ("AWQ", spoil("scales", float("inf")), {}, f"{PLACE}scales has scales that are infinite"),
    "no number": ("GPTQ", spoil("scales", float("nan")), {}, f"{PLACE}scales has scales that are infinite"),
    "an infinite channel": (
        *("compressed-tensors FP8 of channels", spoil("weight_scale", float("inf")), {}),
        f"{PLACE}weight_scale has scales that are infinite",
    ),
    "an infinite block": (
        *("FP8 in blocks", spoil("weight_scale_inv", float("nan")), {}),
        f"{PLACE}weight_scale_inv has scales that are infinite",
    ),
    "an order that does not fill its groups": (
        *("GPTQ with an order", spoil("g_idx", 0), {}, f"{PLACE}g_idx does not put 32 inputs"),
    ),
    "zero points that config.json denies": (
        *("GPTQ v2 with zero points", lambda path: change(path, sym=True), {}),
        r"/model\.safetensors: the tensor model\.layers\.0\.self_attn\.q_proj\.qzeros has zero points",
    ),
    "a bias that the model has not": ("GPTQ", add("bias", torch.ones(64)), {}, f"{PLACE}bias is not zero"),
    "zero points of 8 bits": (
        *("compressed-tensors INT8", add("weight_zero_point", torch.ones(64, 1, dtype=torch.int8))),
        *({}, f"{PLACE}weight_zero_point is not zero"),
    ),
    "no quantization_config": ("FP8 in blocks", forget, {}, "quantization_config"),
    "rounded twice": ("AWQ", lambda _: None, {"weights": "Int8"}, "rounded already, by awq"),
    "an order among workers": ("GPTQ with an order", lambda _: None, {"workers": 2}, "--tensor-parallel 1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_can_not_be_served_is_refused_in_words(
    plain: Path, tmp_path: Path, make_driver: Callable[..., Any], fault: str
) -> None:
    name, damage, settings, words = FAULTS[fault]
    folder = write_quantized(plain, tmp_path, FORMS[name])
    damage(folder)
    with pytest.raises(ModelError, match=words):
        make_driver(folder, **settings)
