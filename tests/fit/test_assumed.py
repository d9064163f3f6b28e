"""Tensors of which config.json alone tells."""

from typing import Any

import pytest

from millrace_fit.facts import find_facts
from millrace_fit.files.headers import StoredTensor
from millrace_fit.tensors import assume_tensors
from testing.checkpoints.models import LLAMA_8B, LLAMA_70B, MEDIUM, QWEN_HALF, stored_of
from tests.fit.quantized import CONFIGS, EXPERTS, FP8_BLOCK, quantise

NORM = "model.norm.weight"


@pytest.mark.parametrize("config", [LLAMA_8B, LLAMA_70B, QWEN_HALF])
def test_they_are_those_of_a_checkpoint(config: dict[str, Any]) -> None:
    assert assume_tensors(config, {}) == stored_of(config)


@pytest.mark.parametrize(
    ("config", "seen", "stored_type"),
    [
        ({"dtype": "float32"}, {}, "F32"),
        ({"dtype": None, "torch_dtype": "float16"}, {}, "F16"),
        ({"dtype": "float32"}, {NORM: StoredTensor("BF16", (256,))}, "BF16"),
        ({"dtype": "float32"}, {NORM: StoredTensor("I8", (256,))}, "F32"),
        ({"dtype": None}, {NORM: StoredTensor("BF16", (256,))}, "BF16"),
    ],
)
def test_their_type_is_that_of_what_was_seen_else_that_of_config_json(
    config: dict[str, Any], seen: dict[str, StoredTensor], stored_type: str
) -> None:
    found = assume_tensors(MEDIUM | config, seen)
    assert found == stored_of(MEDIUM, stored_type) | seen


def test_without_a_type_nothing_is_assumed_unless_what_was_seen_is_refused() -> None:
    assert assume_tensors(MEDIUM | {"dtype": None}, {}) is None
    assert assume_tensors(MEDIUM | {"dtype": "int8"}, {}) is None
    seen = {NORM: StoredTensor("F8_E4M3", (256,))}
    found = assume_tensors(MEDIUM | {"dtype": None}, seen)
    assert found is not None
    assert f"the tensor {NORM} is stored as F8_E4M3" in str(find_facts(MEDIUM, found).fault)


@pytest.mark.parametrize("quantization", CONFIGS)
def test_a_quantised_model_is_known_from_a_part_of_it(quantization: dict[str, Any]) -> None:
    config = LLAMA_8B | {"quantization_config": quantization}
    whole = assume_tensors(config, {})
    assert whole is not None
    seen = dict(list(whole.items())[:5])
    facts = find_facts(config, assume_tensors(config, seen) or {})
    assert facts.fault is None
    assert facts == find_facts(config, whole)
    assert facts.kinds


def test_many_experts_in_blocks_are_all_known() -> None:
    """Each matrix may have eight tensors and has two, of which none is left out."""
    many = {"num_hidden_layers": 48, "num_experts": 128, "mlp_only_layers": []}
    config, tensors = quantise(EXPERTS | many, FP8_BLOCK)
    assert find_facts(config, tensors).fault is None


def test_of_a_model_that_nobody_serves_nothing_is_assumed() -> None:
    seen = {"a": StoredTensor("BF16", (2,))}
    assert assume_tensors({"architectures": ["X"]}, seen) == seen
    assert assume_tensors(MEDIUM | {"hidden_act": "gelu"}, {}) == {}


def test_layers_without_end_are_not_listed() -> None:
    assert assume_tensors(MEDIUM | {"num_hidden_layers": 10**9}, {}) == {}
