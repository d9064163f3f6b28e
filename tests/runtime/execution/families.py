"""A small model of each family, by its config.json: what transformers writes, and replicas serve."""

from typing import Any

from tests.runtime.execution.sizes import SIZES

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
WITHOUT_HEAD_DIM = {name: value for name, value in SIZES.items() if name != "head_dim"}
TOWER = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 48, "patch_size": 8}
PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "head_dim": 16, "image_size": 32, "patch_size": 8,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 2.0], "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 9.0],
}  # fmt: skip
TOWERS = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama, yarn": {"model_type": "llama", "rope_scaling": YARN},
    "qwen2, yarn of a few whole dimensions": {
        "model_type": "qwen2", "head_dim": "-", "num_attention_heads": 3, "num_key_value_heads": 3,
        "rope_scaling": YARN
        | {"beta_fast": 4.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.3},
    },
    "qwen3, norms of heads": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "smollm3, layers without rotary": {"model_type": "smollm3", "num_hidden_layers": 5, "head_dim": "-"},
    "mistral3, with a vision tower beside": {
        "model_type": "mistral3",
        "text_config": SIZES | {"model_type": "mistral", "sliding_window": None},
        "vision_config": PIXTRAL,
    },
    "qwen2.5 vl, with a vision tower beside": {
        "model_type": "qwen2_5_vl",
        "text_config": WITHOUT_HEAD_DIM | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
        "vision_config": TOWER | {"num_heads": 2},
    },
    "qwen2 vl, with a vision tower beside": {
        "model_type": "qwen2_vl",
        "text_config": WITHOUT_HEAD_DIM | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
        "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "patch_size": 8},
    },
    "qwen3 vl, with a vision tower beside": {
        "model_type": "qwen3_vl",
        "text_config": SIZES
        | {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}},
        "vision_config": TOWER | {"num_heads": 2, "deepstack_visual_indexes": [0]},
    },
    "ministral3, up to where it scales queries": {
        "model_type": "ministral3",
        "rope_parameters": YARN
        | {"original_max_position_embeddings": 700, "rope_theta": 5e4, "llama_4_scaling_beta": 0.1},
    },
    "mistral3, of ministral3": {
        "model_type": "mistral3",
        "text_config": SIZES
        | {"model_type": "ministral3", "rope_parameters": YARN | {"llama_4_scaling_beta": 0.0}},
        "vision_config": PIXTRAL,
    },
    "seed_oss, biases of three projections": {"model_type": "seed_oss", "num_key_value_heads": 3},
    "mistral, windowed": {"model_type": "mistral", "sliding_window": 40},
    "qwen2, windows in the later layers": {
        "model_type": "qwen2", "head_dim": "-", "num_hidden_layers": 3, "use_sliding_window": True,
        "sliding_window": 23, "max_window_layers": 1,
    },
    "qwen3_moe, and a layer without experts": {
        "model_type": "qwen3_moe", "num_hidden_layers": 3, "num_experts": 10, "num_experts_per_tok": 3,
        "moe_intermediate_size": 40, "mlp_only_layers": [1], "norm_topk_prob": True,
    },
    "qwen2_moe, with a shared expert": {
        "model_type": "qwen2_moe", "head_dim": "-", "num_hidden_layers": 3, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 72,
        "mlp_only_layers": [1],
    },
    "phi3, joined projections": {
        "model_type": "phi3", "head_dim": "-", "sliding_window": 40, "num_key_value_heads": 3,
    },
    "phi3, the short wavelengths of a part of each head": {
        "model_type": "phi3", "head_dim": "-", "hidden_size": 96,
        "rope_parameters": LONGROPE, "original_max_position_embeddings": 700,
    },
    "phi3, the long ones": {
        "model_type": "phi3", "head_dim": "-", "hidden_size": 96,
        "rope_parameters": LONGROPE, "original_max_position_embeddings": 16,
    },
    "granite, four factors": {
        "model_type": "granite", "head_dim": "-", "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.2, "logits_scaling": 10.0, "tie_word_embeddings": True,
        "attention_bias": True, "mlp_bias": True,
    },
    "granitemoe, all experts in one tensor": {
        "model_type": "granitemoe", "head_dim": "-", "num_local_experts": 6, "num_experts_per_tok": 2,
        "intermediate_size": 40, "residual_multiplier": 0.5, "attention_multiplier": 0.3,
    },
    "granitemoehybrid, without experts or mamba": {
        "model_type": "granitemoehybrid", "head_dim": "-", "num_local_experts": 0,
        "shared_intermediate_size": 72, "layer_types": ["attention"] * 2, "position_embedding_type": "rope",
        "embedding_multiplier": 3.0, "attention_multiplier": 0.3,
        "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_expand": 2,
    },
    "qwen3 vl moe, turned experts in one tensor": {
        "model_type": "qwen3_vl_moe",
        "text_config": SIZES
        | {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
        | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "num_hidden_layers": 2},
        "vision_config": TOWER | {"num_heads": 2, "deepstack_visual_indexes": [0]},
    },
    "glm, half of each head": {"model_type": "glm", "head_dim": 16},
    "glm4, norms after, too": {"model_type": "glm4", "num_key_value_heads": 3},
    "ernie4_5, neighbouring pairs": {"model_type": "ernie4_5", "use_bias": True},
    "gemma3, windows with another base": {
        "model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 40,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 24, "hidden_act": "-", "tie_word_embeddings": True, "rope_theta": "-",
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma3, with a vision tower beside": {
        "model_type": "gemma3", "mm_tokens_per_image": 4,
        "text_config": {name: value for name, value in SIZES.items() if name != "hidden_act"}
        | {"model_type": "gemma3_text", "sliding_window": 24},
        "vision_config": {
            "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
        },
    },
    "llava, a text of mistral": {
        "model_type": "llava", "text_config": SIZES | {"model_type": "mistral"},
        "vision_config": TOWERS | {"model_type": "clip_vision_model"},
    },
    "llava_next, a text of llama": {
        "model_type": "llava_next", "text_config": SIZES | {"model_type": "llama"},
        "vision_config": TOWERS | {"model_type": "clip_vision_model"},
    },
    "internvl, a text of qwen 3": {
        "model_type": "internvl", "text_config": SIZES | {"model_type": "qwen3"},
        "vision_config": TOWERS | {"image_size": [32, 32], "patch_size": [8, 8]},
    },
    "smolvlm": {
        "model_type": "smolvlm", "text_config": SIZES | {"model_type": "llama"}, "vision_config": TOWERS,
    },
    "voxtral, with an audio tower beside": {
        "model_type": "voxtral", "text_config": SIZES | {"model_type": "llama"},
        "audio_config": {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "max_source_positions": 20,
        },
    },
    "qwen2_audio, with an audio tower beside": {
        "model_type": "qwen2_audio", "text_config": WITHOUT_HEAD_DIM | {"model_type": "qwen2"},
        "audio_config": {
            "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
            "num_mel_bins": 8, "max_source_positions": 20,
        },
    },
    "llava_onevision, a text of qwen 2": {
        "model_type": "llava_onevision", "text_config": WITHOUT_HEAD_DIM | {"model_type": "qwen2"},
        "vision_config": TOWERS | {"model_type": "siglip_vision_model"},
    },
    "idefics3": {
        "model_type": "idefics3", "text_config": SIZES | {"model_type": "llama"}, "vision_config": TOWERS,
    },
    "gpt_oss, sinks, biases and clamped gates of all experts in one tensor": {
        "model_type": "gpt_oss", "num_hidden_layers": 3, "sliding_window": 24, "swiglu_limit": 1.5,
        "num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 40, "rope_theta": 1.5e5,
        "rope_scaling": YARN | {"truncate": False},
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 72},
}  # fmt: skip
"""One for each mechanism, by the fields of config.json that differ from SIZES'."""
