"""A config.json of another model: transformers or its author's code would build what no family is."""

from typing import Any

import pytest

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import FAMILIES, declare
from tests.fit.raw_configs import RAW, make_any

OWN_CODE = {"AutoModelForCausalLM": "modeling_own.LlamaForCausalLM"}


@pytest.mark.parametrize(
    "change",
    [
        {"is_causal": False}, {"auto_map": OWN_CODE}, {"scale_emb": 12}, {"logits_scaling": 16.0},
        {"embedding_multiplier": 12.0}, {"residual_multiplier": 0.22}, {"attention_multiplier": 0.0078125},
        {"use_qk_norm": True}, {"qk_layernorm": True}, {"scoring_func": "sigmoid"},
        {"attn_logit_softcapping": 50.0}, {"final_logit_softcapping": 30.0}, {"query_pre_attn_scalar": 256},
        {"per_layer_config": [{}]}, {"routed_scaling_factor": 2.5}, {"hidden_activation": "gelu"},
        {"rotary_pct": 0.25}, {"logit_scale": 0.0625}, {"use_bidirectional_attention": True},
        {"n_group": 8}, {"topk_group": 4}, {"topk_method": "noaux_tc"}, {"moe_layer_freq": 2},
        {"num_shared_experts": 1}, {"attention_value_scale": 0.707}, {"route_scale": 8.0},
        {"rope_interleave": True}, {"score_func": "sigmoid"}, {"attn_logit_soft_cap": 50.0},
    ],
)  # fmt: skip
def test_fields_of_another_authors_code_are_refused_by_name(change: dict[str, Any]) -> None:
    (name,) = change
    for raw in (
        make_any("LlamaForCausalLM", change),
        make_any("Mistral3ForConditionalGeneration", text=change),
        make_any("Mistral3ForConditionalGeneration", change, text={}),
    ):
        with pytest.raises(ArchitectureError, match=f"config.json has {name} "):
            declare(raw)


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("LlamaForCausalLM", {"rope_interleaved": False, "is_llama_config": True, "pretraining_tp": 2}),
        ("LlamaForCausalLM", {"activation": "swiglu", "is_causal": True, "logits_scaling": 1.0}),
        ("LlamaForCausalLM", {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}),
        ("Qwen2ForCausalLM", {"use_mrope": False, "final_logit_softcapping": None, "auto_map": None}),
        ("Qwen3MoeForCausalLM", {"use_qk_norm": True, "shared_expert_intermediate_size": 0}),
        ("MixtralForCausalLM", {"scoring_func": "softmax", "routed_scaling_factor": 1.0}),
        ("MixtralForCausalLM", {"n_group": 1, "topk_group": 1, "topk_method": "greedy", "moe_layer_freq": 1}),
        ("Qwen3MoeForCausalLM", {"n_group": 0, "topk_group": 0, "output_logit_soft_cap": 0}),
        ("LlamaForCausalLM", {"num_shared_experts": 0, "layer_types": ["full_attention"] * 2}),
        ("MiMoForCausalLM", {"num_nextn_predict_layers": 1, "auto_map": OWN_CODE}),
    ],
)
def test_what_published_configs_say_beside_changes_nothing(architecture: str, change: dict[str, Any]) -> None:
    assert declare(make_any(architecture, change)).shape == declare(make_any(architecture)).shape


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_model_type_is_its_familys(family: Any) -> None:
    for text_type in family.text_types or (None,):
        text = {"model_type": text_type} if text_type else None
        right = make_any(family.architecture, {"model_type": family.model_type}, text=text)
        assert declare(right).shape
        if text_type:
            with pytest.raises(ArchitectureError, match="model_type 'cohere2' in text_config"):
                declare(right | {"text_config": right["text_config"] | {"model_type": "cohere2"}})
    with pytest.raises(ArchitectureError, match=rf"model_type 'gemma'; {family.architecture} is of '"):
        declare(right | {"model_type": "gemma"})


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("MiniMaxM2ForCausalLM", "Qwen3MoeForCausalLM"),
        ("Qwen3NextForCausalLM", "Qwen3MoeForCausalLM"),
        ("Qwen3_5ForConditionalGeneration", "Qwen3ForCausalLM"),
        ("Qwen2_5OmniModel", "Qwen2_5_VLForConditionalGeneration"),
        ("OlmoeForCausalLM", "Qwen3MoeForCausalLM"),
        ("PhiMoEForCausalLM", "Qwen3MoeForCausalLM"),
        ("Gemma2ForCausalLM", "Gemma3ForCausalLM"),
        ("InternLM2ForCausalLM", "InternLM3ForCausalLM"),
        ("ChatGLMModel", "GlmForCausalLM"),
        ("MiniCPM3ForCausalLM", "MiniCPMForCausalLM"),
        ("Phi3SmallForCausalLM", "Phi3ForCausalLM"),
        ("Glm4MoeForCausalLM", "Qwen3MoeForCausalLM"),
        ("GPT2LMHeadModel", "Qwen3ForCausalLM"),
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("T5ForConditionalGeneration", None),
        ("MistralModel", None),
        ("LlamaForSequenceClassification", None),
    ],
)
def test_an_unknown_architecture_names_the_nearest_that_is_served(asked: str, nearest: str | None) -> None:
    with pytest.raises(ArchitectureError) as refusal:
        declare(RAW | {"architectures": [asked]})
    assert (f"the nearest is {nearest};" in str(refusal.value)) is (nearest is not None)
    assert nearest is None or nearest in FAMILIES


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({"n_routed_experts": 64}, "Qwen3MoeForCausalLM"),
        ({"num_local_experts": 0}, "Qwen3ForCausalLM"),
        ({"vision_config": {}, "text_config": {}}, "Qwen3VLForConditionalGeneration"),
        ({"vision_config": {}, "text_config": {"num_experts": 8}}, "Qwen3MoeForCausalLM"),
    ],
)
def test_of_an_unknown_maker_the_nearest_is_one_of_the_same_kind(
    change: dict[str, Any], nearest: str
) -> None:
    with pytest.raises(ArchitectureError, match=f"the nearest is {nearest};"):
        declare(RAW | change | {"architectures": ["DotsForCausalLM"]})


@pytest.mark.parametrize("asked", ["MistralModel", "Qwen2ForRewardModel", "LlamaForSequenceClassification"])
def test_a_model_without_a_head_for_text_is_called_so(asked: str) -> None:
    with pytest.raises(ArchitectureError, match=f"{asked}, which generates no text"):
        declare(RAW | {"architectures": [asked]})
