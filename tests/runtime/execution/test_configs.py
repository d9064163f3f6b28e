"""Configs of each family with one field changed: transformers' answer or a refusal, never a wrong model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from millrace_runtime.execution.errors import UnsupportedModelError
from tests.runtime.execution.families import FAMILIES
from tests.runtime.execution.greedy import TOP, check, expected_logits, prompt
from tests.runtime.execution.random_models import find_class, write_random
from tests.runtime.execution.sizes import SIZES

PARTIAL = "partial_rotary_factor"
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.2, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
COMMON: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": 6},
    {"rms_norm_eps": 0.01},
    {"rms_norm_eps": "-"},
    {"rope_theta": 500.0},
    {"rope_theta": "-"},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": "-"},
    {"hidden_act": "gelu"},
    {"max_position_embeddings": "-"},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": {key: value for key, value in LLAMA3.items() if "original" not in key}},
    {"rope_scaling": YARN},
    {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
    {"rope_scaling": YARN | {"attention_factor": 1.2, "beta_fast": 8, "truncate": False}},
    {"rope_scaling": YARN | {"truncate": None}},
    {"rope_scaling": YARN, "original_max_position_embeddings": 64},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "rope_theta": "-"},
    {"partial_rotary_factor": 0.5},
]
ROPES = ("rope_theta", "rope_scaling", "rope_parameters", PARTIAL)
PLAIN = [change for change in COMMON if not any(name in change for name in ROPES)]
WINDOWED = {"use_sliding_window": True, "sliding_window": 16}
WINDOW_OF_TWO = {"sliding_window": 16, "sliding_window_pattern": 2}
OF_FAMILY: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {"num_key_value_heads": None},
        {"attention_bias": True}, {"mlp_bias": True}, {"head_dim": 12}, {"head_dim": "-"},
        {"pretraining_tp": 2},
    ],
    "mistral": [{"head_dim": "-"}, {"sliding_window": None}, {"sliding_window": 16}],
    "qwen2": [
        {"num_key_value_heads": None},
        {"use_sliding_window": False, "sliding_window": 16}, WINDOWED, WINDOWED | {"max_window_layers": 1},
        WINDOWED | {"max_window_layers": 0},
        WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
    ],
    "qwen3": [
        {"num_key_value_heads": None},
        {"attention_bias": True}, {"head_dim": 16}, WINDOWED | {"max_window_layers": 1},
        WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
    ],
    "qwen3_moe": [
        {"norm_topk_prob": True}, {"norm_topk_prob": "-"}, {"num_experts_per_tok": 1}, {"num_experts": 3},
        {"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}, {"attention_bias": True}, WINDOWED,
        {"router_aux_loss_coef": 0.5}, {"shared_expert_intermediate_size": 32},
    ],
    "qwen2_moe": [
        {"norm_topk_prob": True}, {"shared_expert_intermediate_size": 96}, {"qkv_bias": False},
        {"qkv_bias": "-"},
        {"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}, WINDOWED, WINDOWED | {"max_window_layers": 1},
        WINDOWED | {"layer_types": ["full_attention", "sliding_attention"]},
    ],
    "mixtral": [
        {"num_experts_per_tok": 1}, {"num_local_experts": 6}, {"sliding_window": 16}, {"head_dim": "-"},
        {"router_jitter_noise": 0.5},
    ],
    "ministral3": [
        {"head_dim": "-"}, {"sliding_window": 16},
        {"num_key_value_heads": "-", "num_attention_heads": 8, "hidden_size": 64},
    ],
    "phi3": [
        {"num_key_value_heads": None}, {"sliding_window": 16}, {"partial_rotary_factor": 0.75},
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32},
        {"rope_scaling": LONGROPE | {"attention_factor": 1.3}, "original_max_position_embeddings": 32},
        {"rope_scaling": LONGROPE | {"factor": 3.0, "original_max_position_embeddings": 1024}},
    ],
    "granite": [
        {"attention_bias": True}, {"mlp_bias": True}, {"embedding_multiplier": 12},
        {"residual_multiplier": 0.22},
        {"attention_multiplier": 0.1}, {"logits_scaling": 6}, {"head_dim": "-"}, {"head_dim": 16},
    ],
    "granitemoe": [
        {"num_local_experts": 6}, {"num_experts_per_tok": 1}, {"residual_multiplier": 0.22},
        {"attention_multiplier": None},
    ],
    "granitemoehybrid": [
        {"position_embedding_type": "rope"}, {"shared_intermediate_size": 64}, {"attention_bias": True},
    ],
    "glm": [
        {"head_dim": "-"}, {"partial_rotary_factor": "-"}, {"partial_rotary_factor": None},
        {"attention_bias": False},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 9e3, "partial_rotary_factor": 0.25}},
    ],
    "gemma3_text": [
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 16},
        {"rope_local_base_freq": 500.0}, {"rope_theta": 5e4, "rope_local_base_freq": 5e3}, {"head_dim": 16},
        {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 16, "sliding_window_pattern": 2}, {"query_pre_attn_scalar": 64},
        {"attention_bias": True}, {"tie_word_embeddings": False}, {"num_key_value_heads": 3},
        {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}},
        {
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 700.0}},
            "rope_scaling": {"rope_type": "linear", "factor": 4.0}, **WINDOW_OF_TWO,
        },
        {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, **WINDOW_OF_TWO},
        {"rope_scaling": YARN, "original_max_position_embeddings": 64, **WINDOW_OF_TWO},
        {"hidden_activation": "silu"},
    ],
    "gpt_oss": [
        {"sliding_window": 16}, {"sliding_window": "-"}, {"head_dim": "-"},
        {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 16, "layer_types": None, "num_hidden_layers": 3}, {"attention_bias": False},
        {"swiglu_limit": 0.5}, {"swiglu_limit": "-"}, {"num_experts_per_tok": 1}, {"num_local_experts": 3},
        {"rope_scaling": {}}, {"rope_parameters": None, "rope_theta": "-"}, {"experts_per_token": 2},
    ],
    "glm4": [{"head_dim": "-"}, {"partial_rotary_factor": "-"}, {"attention_bias": False}],
    "ernie4_5": [{"head_dim": "-"}, {"use_bias": True}, {"num_key_value_heads": None}],
    "internlm3": [
        {"qkv_bias": True, "bias": True}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": "-"},
        {"attention_bias": True, "mlp_bias": True, "qkv_bias": False, "bias": False},
        {"num_key_value_heads": "-", "num_attention_heads": 4}, {"num_key_value_heads": None},
    ],
    "seed_oss": [
        {"head_dim": "-"}, {"attention_bias": False}, {"attention_out_bias": True}, {"mlp_bias": True},
    ],
    "smollm3": [
        {"num_key_value_heads": None},
        {"no_rope_layers": [0, 1]}, {"no_rope_layers": [1, 1]}, {"no_rope_layer_interval": 2},
        {"attention_bias": True}, {"mlp_bias": True}, WINDOWED,
        WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
    ],
}  # fmt: skip
NESTED: dict[str, list[dict[str, Any]]] = {
    "qwen2_vl": [
        {"num_key_value_heads": "-", "num_attention_heads": 8, "hidden_size": 64}, WINDOWED,
        WINDOWED | {"max_window_layers": 1},
    ],
    "qwen2_5_vl": [
        {"num_key_value_heads": "-", "num_attention_heads": 8, "hidden_size": 64}, WINDOWED,
        WINDOWED | {"max_window_layers": 0},
        WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
    ],
    "qwen3_vl": [
        {"num_key_value_heads": "-", "num_attention_heads": 32}, WINDOWED | {"max_window_layers": 0},
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 16}, {"attention_bias": True},
    ],
}  # fmt: skip
"""Families whose text has a config of its own."""
VISION: dict[str, Any] = {"depth": 1, "hidden_size": 48, "num_heads": 2, "patch_size": 8}
BESIDE = {
    "gemma3": "gemma3, with a vision tower beside",
    "idefics3": "idefics3",
    "internvl": "internvl, a text of qwen 3",
    "llava": "llava, a text of mistral",
    "llava_next": "llava_next, a text of llama",
    "llava_onevision": "llava_onevision, a text of qwen 2",
    "mistral3": "mistral3, of ministral3",
    "qwen2_audio": "qwen2_audio, with an audio tower beside",
    "qwen3_vl_moe": "qwen3 vl moe, turned experts in one tensor",
    "smolvlm": "smolvlm",
    "voxtral": "voxtral, with an audio tower beside",
}
"""Of others whose text has a config of its own, the model in FAMILIES."""
REFUSED = ("hidden_act", "hidden_activation", PARTIAL)
IGNORED = {
    **dict.fromkeys(("phi3", "glm", "glm4"), PARTIAL),
    **dict.fromkeys(("gemma3_text", "gemma3"), "hidden_act"),
}
"""What of REFUSED a family reads, or has no use for."""
OWN_ROPES = ("ministral3", "phi3", "gemma3_text")
"""Families whose rotary embedding has fields or types of its own."""
BASES: dict[str, dict[str, Any]] = {
    # transformers builds a Llama of it, and would write that name.
    "internlm3": {"architectures": ["InternLM3ForCausalLM"]},
    "qwen2": {"head_dim": "-"},
    "smollm3": {"head_dim": "-"},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    "qwen2_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 56,
        "head_dim": "-",
    },
    "mixtral": {"num_local_experts": 4},
    "phi3": {"head_dim": "-"},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 40},
    "granite": {"head_dim": "-"},
    "granitemoe": {"head_dim": "-", "num_local_experts": 4, "intermediate_size": 40},
    "granitemoehybrid": {
        "head_dim": "-",
        "num_local_experts": 0,
        "shared_intermediate_size": 72,
        "layer_types": ["attention"] * 2,
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_expand": 2,
    },
    "qwen2_vl": {"head_dim": "-"},
    "qwen2_5_vl": {"head_dim": "-"},
}
CASES = [
    pytest.param(family, change, id=f"{family}, {change}")
    for family, changes in (OF_FAMILY | NESTED | {name: [] for name in BESIDE}).items()
    for change in (*(PLAIN if family in OWN_ROPES or family in BESIDE else COMMON), *changes)
]
FEW = CASES[::17]
"""For each run of `make test`."""


def nest(fields: dict[str, Any]) -> dict[str, Any]:
    """Put them into the text's config, with sections of angles as small as its heads."""
    text = {name: value for name, value in (SIZES | fields).items() if value != "-"}
    name = "rope_parameters" if "rope_parameters" in text else "rope_scaling"
    text[name] = {"type": "default", "mrope_section": [2, 1, 1]} | text.get(name, {})
    return {"text_config": text, "vision_config": VISION}


def find_fields(family: str, change: dict[str, Any]) -> dict[str, Any]:
    if family in BESIDE:
        model = FAMILIES[BESIDE[family]]
        text = {name: value for name, value in (model["text_config"] | change).items() if value != "-"}
        return model | {"text_config": text}
    fields = BASES.get(family, {}) | change
    return {"model_type": family} | (nest(fields) if family in NESTED else fields)


def check_config(folder: Path, make_driver: Callable[..., Any], family: str, change: dict[str, Any]) -> None:
    fields = find_fields(family, change)
    path, tokens = write_random(folder, fields, is_raw=True), prompt(60, 0)
    if is_refused := [field for field in REFUSED if field in change and field != IGNORED.get(family)]:
        with pytest.raises(UnsupportedModelError, match=is_refused[0]):
            make_driver(path, max_model_length=128)
        return
    driver = make_driver(path, max_model_length=128)
    driver.start(3, tokens, num_logprobs=TOP)
    results = [result for _ in range(2) for result in driver.advance(47) if result.tokens]
    model = find_class(fields).from_pretrained(path, dtype=torch.float32, local_files_only=True)
    check(expected_logits(model, tokens), len(tokens), results)


@pytest.mark.parametrize(("family", "change"), FEW)
def test_a_config_is_read_as_transformers_reads_it(
    tmp_path: Path, make_driver: Callable[..., Any], family: str, change: dict[str, Any]
) -> None:
    check_config(tmp_path / "model", make_driver, family, change)


@pytest.mark.long
@pytest.mark.parametrize(("family", "change"), [case for case in CASES if case not in FEW])
def test_any_config_is_read_as_transformers_reads_it(
    tmp_path: Path, make_driver: Callable[..., Any], family: str, change: dict[str, Any]
) -> None:
    check_config(tmp_path / "model", make_driver, family, change)
