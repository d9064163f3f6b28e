from typing import Any

import pytest

from millrace_runtime.layers.rotary import LinearScaling, Llama3Scaling
from millrace_runtime.models.config import parse_llama_config
from millrace_runtime.models.errors import ArchitectureError
from millrace_runtime.models.registry import find_architecture

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_what_is_left_out_has_the_usual_default() -> None:
    config = parse_llama_config(RAW)
    assert (config.num_kv_heads, config.head_dim, config.theta, config.scaling) == (4, 16, 10000.0, None)
    assert not config.is_tied
    assert not config.has_qkv_bias


def test_both_spellings_of_rotary_scaling_are_read() -> None:
    old = parse_llama_config(RAW | {"rope_theta": 5e5, "rope_scaling": LLAMA3})
    new = parse_llama_config(RAW | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
    assert old == new
    assert old.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    linear = parse_llama_config(RAW | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert linear.scaling == LinearScaling(2.0)


def test_qwen2_has_biases_without_saying_so() -> None:
    config = parse_llama_config(RAW | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False,
                                       "sliding_window": 64})  # fmt: skip
    assert config.has_qkv_bias
    assert not config.has_output_bias


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size None"),
        ({"hidden_size": "64"}, "hidden_size '64'"),
        ({"num_hidden_layers": 0}, "at least 1"),
        ({"num_key_value_heads": 3}, "must be a multiple"),
        ({"head_dim": 7}, "even"),
        ({"hidden_act": "gelu"}, 'only "silu"'),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, 'rope_type "yarn"'),
        ({"rope_scaling": LLAMA3 | {"factor": 0}}, "factor 0"),
        ({"rope_theta": "big"}, "must be a number"),
        ({"quantization_config": {}}, "unquantised"),
        ({"sliding_window": 64}, "sliding_window 64"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        parse_llama_config(RAW | changes)


@pytest.mark.parametrize("names", [["GPT2LMHeadModel"], [], None])
def test_an_unknown_architecture_lists_the_supported(names: Any) -> None:
    with pytest.raises(ArchitectureError, match="supported are LlamaForCausalLM, MistralForCausalLM, Qwen2"):
        find_architecture(RAW | {"architectures": names})
