from typing import Any

import pytest

from millrace_fit.config import (
    LLAMA,
    MISTRAL,
    QWEN2,
    Family,
    LinearScaling,
    Llama3Scaling,
    parse_llama_config,
)
from millrace_fit.errors import ArchitectureError
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
WINDOWED = {"use_sliding_window": True, "max_window_layers": 0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_what_is_left_out_has_the_usual_default() -> None:
    config = parse_llama_config(RAW, LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.theta, config.scaling) == (4, 16, 10000.0, None)
    assert not config.is_tied
    assert not config.has_qkv_bias


def test_both_spellings_of_rotary_scaling_are_read() -> None:
    old = parse_llama_config(RAW | {"rope_theta": 5e5, "rope_scaling": LLAMA3}, LLAMA)
    new = parse_llama_config(RAW | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, LLAMA)
    assert old == new
    assert old.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    linear = parse_llama_config(RAW | {"rope_scaling": {"type": "linear", "factor": 2}}, LLAMA)
    assert linear.scaling == LinearScaling(2.0)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [({"type": "linear", "factor": 2}, (7e4, LinearScaling(2.0))), ({}, (5e5, None)), (None, (5e5, None))],
)
def test_the_older_spelling_alone_counts_where_both_are_there(
    scaling: dict[str, Any] | None, expected: tuple[float, LinearScaling | None]
) -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5}
    both = {"rope_theta": 7e4, "rope_parameters": rope, "rope_scaling": scaling}
    config = parse_llama_config(RAW | both, LLAMA)
    assert (config.theta, config.scaling) == expected


@pytest.mark.parametrize("family", [LLAMA, QWEN2])
def test_a_flag_may_be_null(family: Family) -> None:
    names = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window")
    raw = RAW | {"num_key_value_heads": 4}
    assert parse_llama_config(raw | dict.fromkeys(names), family) == parse_llama_config(raw, family)


@pytest.mark.parametrize(
    ("family", "biases"),
    [(LLAMA, (True, True, True)), (MISTRAL, (False, False, False)), (QWEN2, (True, False, False))],
)
def test_flags_of_biases_are_llamas_alone_and_qwen2_has_three_without(
    family: Family, biases: tuple[bool, bool, bool]
) -> None:
    flags = {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}
    config = parse_llama_config(RAW | flags, family)
    assert (config.has_qkv_bias, config.has_output_bias, config.has_mlp_bias) == biases
    silent = parse_llama_config(RAW | {"num_key_value_heads": 4}, family)
    silent_biases = (silent.has_qkv_bias, silent.has_output_bias, silent.has_mlp_bias)
    assert silent_biases == (family is QWEN2, False, False)


@pytest.mark.parametrize(("family", "num_kv_heads"), [(LLAMA, 64), (MISTRAL, 8), (QWEN2, 32)])
def test_kv_heads_left_out_are_what_transformers_takes_them_for(family: Family, num_kv_heads: int) -> None:
    heads = {"num_attention_heads": 64, "head_dim": 2}
    assert parse_llama_config(RAW | heads, family).num_kv_heads == num_kv_heads
    assert parse_llama_config(RAW | heads | {"num_key_value_heads": None}, family).num_kv_heads == 64


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        (LLAMA, {}, None),
        (LLAMA, {"sliding_window": 64}, 64),
        (LLAMA, {"sliding_window": 64, "use_sliding_window": False}, None),
        (MISTRAL, {}, 4096),
        (MISTRAL, {"sliding_window": None}, None),
        (MISTRAL, {"sliding_window": 64, "use_sliding_window": False}, 64),
        (QWEN2, {}, None),
        (QWEN2, {"sliding_window": 64}, None),
        (QWEN2, {"use_sliding_window": True}, None),
        (QWEN2, {"use_sliding_window": True, "num_hidden_layers": 29}, 4096),
        (QWEN2, {"use_sliding_window": True, "max_window_layers": 2}, None),
        (QWEN2, {"use_sliding_window": True, "max_window_layers": 1}, 4096),
        (QWEN2, {"use_sliding_window": True, "max_window_layers": 0}, 4096),
        (QWEN2, WINDOWED | {"layer_types": ["full_attention"] * 2}, None),
        (QWEN2, WINDOWED | {"layer_types": ["full_attention", "sliding_attention"]}, 4096),
        (QWEN2, {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 4096),
        (QWEN2, {"use_sliding_window": True, "sliding_window": None}, None),
    ],
)
def test_a_window_left_out_is_what_transformers_takes_it_for(
    family: Family, changes: dict[str, Any], window: int | None
) -> None:
    assert parse_llama_config(RAW | {"num_key_value_heads": 4} | changes, family).window == window


def test_what_says_nothing_is_no_error() -> None:
    silent = {"quantization_config": None, "rope_scaling": None, "partial_rotary_factor": 1.0}
    silent["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000, "attention_factor": None}
    assert parse_llama_config(RAW | silent, LLAMA) == parse_llama_config(RAW, LLAMA)


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
        ({"sliding_window": "4096"}, "sliding_window '4096'"),
        ({"max_position_embeddings": None, "sliding_window": 64}, "max_position_embeddings None"),
        ({"rope_theta": 10**400}, "above 0 and finite"),
        ({"rope_scaling": "linear"}, "rotary scaling 'linear'"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "the first must be lower"),
        ({"rope_scaling": LLAMA3 | {"attention_factor": 2.0}}, "attention_factor 2.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "partial_rotary_factor": 0.5}}, "only 1 is"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings 'false'; it must be true or false"),
        ({"attention_bias": "no"}, "attention_bias 'no'"),
        ({"mlp_bias": 0}, "mlp_bias 0"),
        ({"use_sliding_window": "false"}, "use_sliding_window 'false'"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        parse_llama_config(RAW | changes, LLAMA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_window_layers": -1}, "max_window_layers -1; it must be a whole number of at least 0"),
        ({"layer_types": "full_attention"}, "layer_types 'full_attention'; it must be a list"),
    ],
)
def test_what_says_nothing_of_windows_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        parse_llama_config(RAW | WINDOWED | {"num_key_value_heads": 4} | changes, QWEN2)


@pytest.mark.parametrize("names", [["GPT2LMHeadModel"], [], None])
def test_an_unknown_architecture_lists_the_supported(names: Any) -> None:
    with pytest.raises(ArchitectureError, match="supported are LlamaForCausalLM, MistralForCausalLM, Qwen2"):
        find_architecture(RAW | {"architectures": names})


@pytest.mark.parametrize("names", ["LlamaForCausalLM", 5, [["LlamaForCausalLM"]]])
def test_architectures_that_are_no_list_of_names_are_refused(names: Any) -> None:
    with pytest.raises(ArchitectureError, match="must be a list of names"):
        find_architecture(RAW | {"architectures": names})
