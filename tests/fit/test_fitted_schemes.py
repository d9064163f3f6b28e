"""What config.json leaves open is decided by the tensors that a checkpoint has."""

from typing import Any

import pytest

from millrace_fit.facts import find_facts
from millrace_fit.families.registry import declare
from millrace_fit.files.headers import StoredTensor
from millrace_fit.quantization.methods import add_modelopt, read_quantization
from millrace_fit.quantization.rules import Quantization
from millrace_fit.quantization.scheme import Kind, Packing, Scheme
from millrace_fit.tensors import list_needed
from testing.checkpoints.models import LLAMA_8B
from tests.fit.quantized import AWQ, EXPERTS, FP8_BLOCK, GPTQ, MODELOPT, SMALL, quantise

MLP = "model.layers.0.mlp"
ROUTER, GATE, EXPERT = f"{MLP}.gate", f"{MLP}.gate_proj", f"{MLP}.experts.2.gate_proj"
BLOCK = Scheme(Kind.FP8, Packing.PLAIN, 128, 128, scale="weight_scale_inv")


def read(config: Any, *names: str) -> Quantization:
    return read_quantization({"quantization_config": config}).fit_to(names)


@pytest.mark.parametrize(
    ("config", "name", "ending", "is_quantized"),
    [
        (AWQ, ROUTER, "qweight", True),
        (AWQ, ROUTER, "weight", False),
        (AWQ, "lm_head", "scales", True),
        (AWQ | {"modules_to_not_convert": ["gate"]}, GATE, "qweight", True),
        (AWQ | {"modules_to_not_convert": ["gate"]}, GATE, "weight", False),
        (AWQ | {"modules_to_not_convert": ["gate"]}, ROUTER, "weight", False),
        (FP8_BLOCK, ROUTER, "weight_scale_inv", True),
        (FP8_BLOCK, "lm_head", "weight", False),
        (FP8_BLOCK | {"modules_to_not_convert": ["mlp.gate"]}, ROUTER, "weight_scale_inv", False),
        (GPTQ, "lm_head", "qweight", True),
        (GPTQ, ROUTER, "qweight", True),
        (GPTQ | {"dynamic": {r"-:.*\.gate$": {}}}, ROUTER, "qweight", False),
        (GPTQ | {"modules_in_block_to_quantize": ["up_proj"]}, ROUTER, "weight", False),
        (MODELOPT, ROUTER, "weight_scale", True),
        (MODELOPT | {"ignore": []}, "lm_head", "weight", False),
        (MODELOPT | {"ignore": []}, "lm_head", "weight_scale", True),
        # config.json says these by itself: tensors that differ are a fault.
        (FP8_BLOCK, GATE, "weight", True),
        (AWQ, EXPERT, "weight", True),
    ],
)
def test_a_matrix_is_quantised_as_its_tensors_are(
    config: Any, name: str, ending: str, *, is_quantized: bool
) -> None:
    assert (read(config, f"{name}.{ending}").find_scheme(name) is not None) == is_quantized


@pytest.mark.parametrize("stored", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize(
    "config", [FP8_BLOCK, FP8_BLOCK | {"weight_block_size": None}, {"quant_method": "fp8"}, MODELOPT]
)
def test_scales_have_the_name_that_the_files_have(config: Any, stored: str) -> None:
    scheme = read(config, f"{GATE}.weight", f"{GATE}.{stored}").find_scheme(GATE)
    assert scheme is not None
    assert scheme.scale == stored


@pytest.mark.parametrize("quantization", [AWQ | {"group_size": 64}, GPTQ | {"group_size": 64}, FP8_BLOCK])
def test_a_quantised_router_and_head_are_no_fault(quantization: Any) -> None:
    config, tensors = quantise(EXPERTS | {"num_experts": 8}, quantization)
    scheme = read(quantization).find_scheme(EXPERT)
    assert scheme is not None
    for name, outputs in ((ROUTER, 8), ("lm_head", config["vocab_size"] + 5)):
        del tensors[f"{name}.weight"]
        for part in scheme.list_parts(outputs, config["hidden_size"]):
            tensors[f"{name}.{part.ending}"] = StoredTensor(part.types[0], part.shapes[0])
    facts = find_facts(config | {"vocab_size": config["vocab_size"] + 5}, tensors | _embed(config))
    assert facts.fault is None
    assert {one.role.name for one in facts.quantized} >= {"HEAD"}


def _embed(config: Any) -> dict[str, StoredTensor]:
    return {
        "model.embed_tokens.weight": StoredTensor("F32", (config["vocab_size"] + 5, config["hidden_size"]))
    }


@pytest.mark.parametrize(
    "written",
    [
        {"quant_algo": "FP8", "ignore": ["lm_head"], "quant_library": "modelopt", "producer": {}},
        add_modelopt({}, {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})[
            "quantization_config"
        ],
    ],
)
def test_modelopt_is_known_without_a_quant_method(written: Any) -> None:
    found = read(written)
    assert (found.method, found.find_scheme(GATE)) == ("modelopt", Scheme(Kind.FP8, Packing.PLAIN, None))
    assert found.find_scheme("lm_head") is None


def test_modelopt_of_a_kv_cache_alone_leaves_matrices_as_they_are() -> None:
    raw = add_modelopt({}, {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}})
    assert not read_quantization(raw).is_quantized


def test_unseen_tensors_are_assumed_with_those_that_were_seen() -> None:
    """A part of an image: its router has words, so it has no plain weight."""
    config = EXPERTS | {"quantization_config": AWQ | {"group_size": 64}}
    names = {one.name for one in list_needed(declare(config).fit_to([f"{ROUTER}.qweight"]))}
    assert f"{ROUTER}.qzeros" in names
    assert f"{ROUTER}.weight" not in names


@pytest.mark.parametrize("changes", [{"desc_act": True}, {"desc_act": True, "group_size": -1}])
def test_experts_with_an_order_each_are_refused(changes: Any) -> None:
    fault = find_facts(*quantise(EXPERTS, GPTQ | {"group_size": 64} | changes)).fault
    if changes.get("group_size") == -1:
        assert fault is None
    else:
        assert "experts.0.gate_proj take inputs in any order (desc_act, actorder)" in (fault or "")


@pytest.mark.parametrize(
    ("config", "quantization"),
    [
        (SMALL, FP8_BLOCK | {"weight_block_size": [1 << 70, 128]}),
        (SMALL, FP8_BLOCK | {"weight_block_size": [128, 1 << 40]}),
        (LLAMA_8B, AWQ | {"group_size": 1 << 20}),
    ],
)
def test_blocks_larger_than_a_matrix_are_refused(config: Any, quantization: Any) -> None:
    fault = find_facts(*quantise(config, quantization)).fault or ""
    assert "fewer than one block of" in fault
