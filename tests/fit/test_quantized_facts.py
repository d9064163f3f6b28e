"""What headers and config.json say of a quantised checkpoint: faults, weights, bytes, and workers."""

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace_fit.accelerators import GPUS
from millrace_fit.facts import MAX_BYTES, ModelFacts, find_facts
from millrace_fit.files.headers import StoredTensor
from millrace_fit.settings import Settings
from millrace_fit.verdict import Answer, judge
from testing.checkpoints.models import LLAMA_8B, LLAMA_70B, read_facts, stored_of, write_model
from testing.checkpoints.quantized import FORMS, write_quantized
from tests.fit import quantized
from tests.fit.quantized import CONFIGS, EXPERTS, FP8_BLOCK, MODELOPT, SMALL, W8A8, Tensors, quantise

AWQ, GPTQ = quantized.AWQ | {"group_size": 64}, quantized.GPTQ | {"group_size": 64}
DOWN = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), SMALL)


def write(plain: Path, folder: Path, name: str) -> Path:
    (folder / "tokenizer.json").write_text("{}")
    return write_quantized(plain, folder, FORMS[name])


def find(config: Mapping[str, Any], quantization: Mapping[str, Any]) -> ModelFacts:
    return find_facts(*quantise(config, quantization))


@pytest.mark.parametrize("name", FORMS)
def test_a_checkpoint_has_as_many_weights_as_the_plain_one(plain: Path, tmp_path: Path, name: str) -> None:
    facts = read_facts(write(plain, tmp_path, name))
    assert facts.fault is None
    assert facts.num_parameters == read_facts(plain).num_parameters
    assert facts.served_type == "float32"
    assert ModelFacts.from_json(facts.to_json()) == facts


@pytest.mark.parametrize("quantization", CONFIGS)
@pytest.mark.parametrize("config", [LLAMA_8B, EXPERTS])
def test_facts_of_a_quantised_model_are_a_short_line(config: Any, quantization: Any) -> None:
    facts = find(config, quantization)
    assert facts.fault is None
    assert facts.num_parameters == sum(one.num_numbers for one in stored_of(config).values())
    text = facts.to_json()
    assert len(text) < 1000
    assert ModelFacts.from_json(text) == facts


def test_facts_are_short_however_the_layers_differ() -> None:
    """What does not fit counts as unquantised."""
    draw = random.Random(0)
    layers = {
        rf"{draw.choice('+++-')}:.*layers\.{number}\..*{part}_proj": {
            "group_size": 32 * 2 ** draw.randrange(6)
        }
        for number in range(80)
        for part in "qkvo"
    }
    facts = find(LLAMA_70B, GPTQ | {"dynamic": layers})
    assert facts.fault is None
    assert len(facts.to_json()) <= MAX_BYTES
    read = ModelFacts.from_json(facts.to_json())
    assert 0 < len(read.quantized) < len(facts.quantized)
    assert read.weigh(Settings()).most_bytes > facts.weigh(Settings()).most_bytes


def test_facts_are_short_however_many_kinds_of_layers_are_quantised() -> None:
    """Four kinds with YaRN leave less room for schemes."""
    windows = {
        "layer_types": ["full_attention", "sliding_attention"] * 2, "use_sliding_window": True,
        "sliding_window": 4096, "num_hidden_layers": 4, "mlp_only_layers": [0, 1], "decoder_sparse_step": 1,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 512, "architectures": ["Qwen2MoeForCausalLM"],
        "rope_scaling": {"rope_type": "yarn", "factor": 1e15 / 3, "beta_fast": 1e9 / 3, "beta_slow": 1 / 3},
    }  # fmt: skip
    grouped = {rf".*layers\.{number}\..*{one}": {"group_size": 32 * 2 ** (place % 3)} for number in range(4)
               for place, one in enumerate(("q_proj", "v_proj", "o_proj", "down_proj"))}  # fmt: skip
    config = {
        name: value
        for name, value in (SMALL | {"intermediate_size": 2048} | windows).items()
        if name != "head_dim"
    }
    facts = find(config, GPTQ | {"dynamic": grouped})
    assert facts.fault is None
    assert facts.shape is not None
    assert len(facts.shape.kinds) == 4
    assert len(facts.to_json().encode()) <= MAX_BYTES
    assert ModelFacts.from_json(facts.to_json()).quantized


def change(tensors: Tensors, changes: Mapping[str, StoredTensor | None]) -> Tensors:
    changed = {**tensors, **{f"{DOWN}.{name}": one for name, one in changes.items() if one is not None}}
    return {name: one for name, one in changed.items() if changes.get(name.removeprefix(f"{DOWN}."), one)}


BF16 = StoredTensor("BF16", (256, 704))
FAULTS: dict[str, tuple[Any, dict[str, StoredTensor | None], str]] = {
    "FP8 that is bf16": (
        FP8_BLOCK,
        {"weight": BF16},
        r"weight is stored as BF16, and config.json says FP8 in",
    ),
    "AWQ that is bf16": (
        *(AWQ, {"weight": BF16, "qweight": None}),
        "weight is stored as BF16, and config.json says INT4 in groups of 64 .awq.: use the config.json",
    ),
    "no scale": (FP8_BLOCK, {"weight_scale_inv": None}, "lack the tensor .*weight_scale_inv: the model is"),
    "another scale": (
        *(MODELOPT, {"weight_scale": StoredTensor("F32", (256,))}),
        r"weight_scale has the shape \[256\] and config.json asks for \[\]",
    ),
    "a scale in 8 bits": (
        *(FP8_BLOCK, {"weight_scale_inv": StoredTensor("F8_E8M0", (2, 6))}),
        "stored as F8_E8M0, and replicas read F32 or BF16 or F16 there .fp8.: take another",
    ),
    "another float": (
        FP8_BLOCK,
        {"weight": StoredTensor("F8_E5M2", (256, 704))},
        "F8_E5M2, and replicas read",
    ),
    "one too many": (W8A8, {"more": BF16}, "without the tensor .*more, one of 1 that would be left out"),
    "a bias of GPTQ": (GPTQ, {"bias": StoredTensor("F16", (256,))}, ""),
    "an input's scale": (MODELOPT, {"input_scale": StoredTensor("F32", ())}, ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tensors_that_contradict_config_json_are_named(fault: str) -> None:
    quantization, changes, words = FAULTS[fault]
    config, tensors = quantise(SMALL, quantization)
    found = find_facts(config, change(tensors, changes)).fault
    if not words:
        assert found is None
        return
    assert found is not None
    assert re.search(words, found), found


@pytest.mark.parametrize("quantization", [FP8_BLOCK, W8A8, AWQ])
def test_without_a_quantization_config_the_tensors_mean_nothing(quantization: Any) -> None:
    _, tensors = quantise(SMALL, quantization)
    fault = find_facts(SMALL, tensors).fault or ""
    assert "means nothing without a quantization_config in config.json" in fault
    assert "and the hf_quant_config.json if one is beside it" in fault


def test_what_is_left_out_by_config_json_must_be_plain() -> None:
    _, tensors = quantise(SMALL, FP8_BLOCK)
    config = SMALL | {"quantization_config": FP8_BLOCK | {"modules_to_not_convert": [DOWN]}}
    assert f"{DOWN}.weight is stored as F8_E4M3, and config.json leaves it" in str(
        find_facts(config, tensors)
    )


def test_groups_that_divide_nothing_are_named() -> None:
    fault = find(SMALL, quantized.GPTQ).fault or ""
    assert "layers.0.mlp.down_proj.qweight has 704 inputs, which are no multiple of 128" in fault


def test_scales_of_a_kv_cache_may_lie_anywhere() -> None:
    config, tensors = quantise(SMALL, W8A8)
    one = StoredTensor("F32", (1,))
    names = (
        *("self_attn.k_scale", "self_attn.v_proj.v_scale", "self_attn.k_proj.output_scale"),
        *("self_attn.kv_scale", "self_attn.qkv_proj.k_scale", "self_attn.qkqkv_proj.v_scale"),
    )
    assert find_facts(config, tensors | {f"model.layers.2.{name}": one for name in names}).fault is None


def test_a_quantised_checkpoint_is_not_rounded_again() -> None:
    facts = find(LLAMA_8B, AWQ)
    for device in ("cpu", "cuda"):
        verdict = judge(facts, Settings(device=device, weights="Int8"), GPUS["h100-80g"])
        assert verdict.answer is Answer.UNSUPPORTED
        assert "quantised already" in verdict.message
        assert "--weights FromCheckpoint" in verdict.message
    tight = judge(
        facts, Settings(device="cpu"), replace(GPUS["h100-80g"], memory_bytes=3 << 30, device="cpu")
    )
    assert "Int" not in str(tight)


@pytest.mark.parametrize(
    ("quantization", "count", "words"),
    [
        (AWQ, 2, None),
        (FP8_BLOCK, 8, None),
        (
            GPTQ | {"desc_act": True},
            2,
            "INT4 in groups of 64 in any order can't be shared by 2 workers: take 1",
        ),
        (GPTQ | {"lm_head": True}, 3, None),
    ],
)
def test_workers_that_cannot_share_are_told_how_many_can(
    quantization: Any, count: int, words: str | None
) -> None:
    verdict = judge(find(LLAMA_8B, quantization), Settings(tensor_parallel=count), None)
    if words is None:
        assert verdict.answer is Answer.UNKNOWN
    else:
        assert words in verdict.message


def test_a_gpu_reads_about_the_bytes_of_the_files() -> None:
    for quantization, part in ((FP8_BLOCK, 0.5), (W8A8, 0.5), (quantized.AWQ, 0.27)):
        facts = find(LLAMA_8B, quantization)
        layers = sum(one.num_numbers for name, one in stored_of(LLAMA_8B).items() if "layers" in name)
        outside = 2 * (facts.num_parameters - layers)
        assert facts.weigh(Settings()).most_bytes - outside == pytest.approx(part * 2 * layers, rel=0.035)
