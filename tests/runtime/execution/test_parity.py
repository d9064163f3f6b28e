"""Greedy output of Llama and its kin against transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from stories_training.generator import HELD_OUT_SEED, generate_document
from stories_training.tokens import encode_document
from stories_training.train import FOLDER
from tests.runtime.execution.greedy import check_greedy, prompt

MODELS = [
    pytest.param({}, id="grouped, untied"),
    pytest.param({"tie_word_embeddings": True, "num_key_value_heads": 6}, id="ungrouped, tied"),
    pytest.param(
        {
            "num_key_value_heads": 1,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
        id="one KV head, llama3 scaling",
    ),
    pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, id="linear scaling"),
    pytest.param(
        {
            "rope_theta": 20000.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
        id="scaling in both spellings",
    ),
    pytest.param({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
                 id="mistral"),
    pytest.param({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, id="qwen2"),
]  # fmt: skip


@pytest.mark.parametrize("changes", MODELS)
def test_greedy_agrees_with_transformers_alone_crowded_and_chunked(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], changes: dict[str, Any]
) -> None:
    check_greedy(make_model(**changes), prompt(277, 0), make_driver)


def test_greedy_agrees_with_transformers_on_the_shipped_model(make_driver: Callable[..., Any]) -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokens: list[int] = []
    for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + 20):
        tokens += encode_document(tokenizer, generate_document(seed))
    check_greedy(FOLDER, tokens[:277], make_driver)
