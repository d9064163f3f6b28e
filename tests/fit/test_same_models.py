"""Families whose own code is not at hand: each is another one under other names, or a refusal."""

import math
from dataclasses import replace
from typing import Any

import pytest

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import declare
from millrace_fit.rotary import LinearScaling
from millrace_fit.shape import DecoderShape, MlpShape
from tests.fit.quantized import FP8_DYNAMIC
from tests.fit.raw_configs import FOUR_KV_HEADS, RAW

OWN_CODE = {"AutoModelForCausalLM": "modeling_own.Model"}
HYBRID = {"num_local_experts": 0, "layer_types": ["attention"] * 2, "shared_intermediate_size": 128}


def shape_of(architecture: str, **fields: Any) -> DecoderShape:
    return declare(RAW | FOUR_KV_HEADS | {"architectures": [architecture]} | fields).shape


def test_internlm3_is_llama_with_biases_under_other_names() -> None:
    theirs = shape_of("InternLM3ForCausalLM", auto_map=OWN_CODE, qkv_bias=True, bias=True, head_dim=16)
    epsilon = 1e-5
    assert theirs == shape_of(
        "LlamaForCausalLM", attention_bias=True, mlp_bias=True, rms_norm_eps=epsilon, head_dim=16
    )
    assert theirs == shape_of("InternLM3ForCausalLM", attention_bias=True, mlp_bias=True, head_dim=16)
    assert theirs != shape_of("InternLM3ForCausalLM", attention_bias=True, qkv_bias=False, head_dim=16)


def test_minicpm_is_granite_with_factors_under_other_names() -> None:
    theirs = shape_of(
        "MiniCPMForCausalLM", auto_map=OWN_CODE, scale_emb=12, scale_depth=1.4, dim_model_base=16
    )
    (kind,) = theirs.kinds
    scaled = replace(kind, attention=replace(kind.attention, scale=kind.attention.head_dim**-0.5))
    assert replace(theirs, kinds=(scaled,)) == shape_of(
        "GraniteForCausalLM",
        embedding_multiplier=12,
        residual_multiplier=1.4 / math.sqrt(2),
        logits_scaling=4,
        attention_multiplier=16**-0.5,
        tie_word_embeddings=True,
    )


def test_a_minicpm_with_experts_is_refused() -> None:
    assert shape_of("MiniCPMForCausalLM", num_experts=0) == shape_of("MiniCPMForCausalLM")
    with pytest.raises(ArchitectureError, match="num_experts 8; only models without experts"):
        shape_of("MiniCPMForCausalLM", num_experts=8, num_experts_per_tok=2)


def test_minicpm_attends_to_all_tokens_up_to_a_length() -> None:
    assert shape_of("MiniCPMForCausalLM", sparse_config={"dense_len": 128}).max_length == 128
    assert shape_of("MiniCPMForCausalLM", sparse_config=None).max_length == 512


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_local_experts": 8}, "num_local_experts 8; only models without experts"),
        ({"layer_types": None}, "no layer_types, so all layers are Mamba's"),
        ({"layer_types": ["mamba", "attention"]}, "'mamba' in layer_types"),
        ({"layers_block_type": ["mamba", "attention"]}, "'mamba' in layers_block_type"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type 'alibi'"),
    ],
)
def test_granite_4_with_mamba_or_experts_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        shape_of("GraniteMoeHybridForCausalLM", **HYBRID | change)


def test_a_text_beside_images_has_its_families_sizes_where_a_config_is_silent() -> None:
    """LLaVA 1.5's published one says no more."""
    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    config = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text}
    shape = declare(config).shape
    (kind,) = shape.kinds
    assert (shape.width, shape.num_layers, shape.vocabulary_size, shape.max_length) == (4096, 32, 32064, 4096)
    assert (kind.attention.num_heads, kind.attention.num_kv_heads, kind.mlp) == (32, 32, MlpShape(11008))
    with pytest.raises(ArchitectureError, match="model_type 'cohere2' in text_config"):
        declare(config | {"text_config": text | {"model_type": "cohere2"}})


@pytest.mark.parametrize("name", ["model.layers.0.shared_mlp.input_linear", "re:.*layers.0.shared_mlp.*"])
def test_lists_of_granite_4_name_its_joined_projection(name: str) -> None:
    """Of either projection in it, and of no other layer's."""
    quantization = FP8_DYNAMIC | {"ignore": ["lm_head", name]}
    named = {"architectures": ["GraniteMoeHybridForCausalLM"], "quantization_config": quantization}
    declared = declare(RAW | FOUR_KV_HEADS | HYBRID | named)
    names = [[declared.family.names[part].format(layer=layer) for part in ("gate", "up")] for layer in (0, 1)]
    schemes = [[declared.quantization.find_scheme(name) for name in of_layer] for of_layer in names]
    assert schemes[0] == [None, None]
    assert None not in schemes[1]


def test_gemma_3_has_its_classs_sizes_where_a_config_is_silent() -> None:
    """The published one of 4 billion weights says no more of its text."""
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
    }
    shape = declare(config).shape
    near, far = shape.kinds
    assert (shape.vocabulary_size, shape.max_length, shape.is_tied) == (262208, 131072, True)
    assert (near.attention.window, near.attention.theta, near.attention.scale) == (1024, 1e4, 1 / 16)
    assert (far.attention.window, far.attention.theta, shape.theta) == (None, None, 1e6)
    assert (far.attention.num_heads, far.attention.num_kv_heads, far.attention.head_dim) == (8, 4, 256)
    assert shape.scaling == LinearScaling(8.0)
    assert [run.count for run in shape.runs] == [5, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ({"hidden_activation": "gelu"}, 'hidden_activation .gelu.; only "gelu_pytorch_tanh"'),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            "for sliding_attention; only that",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2.0}}},
            "for sliding_attention; only that",
        ),
        ({"sliding_window": None}, "sliding_window None"),
        ({"rope_parameters": {"full_attention": 7}}, "full_attention 7; it must be an object"),
    ],
)
def test_a_gemma_that_computes_something_else_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        shape_of("Gemma3ForCausalLM", **change)
