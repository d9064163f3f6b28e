"""The refusals of a config.json: of fields that no family computes, and of unknown architectures.

transformers ignores most of these fields for the families here. A config that has one was written for another
model.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from millrace_fit.errors import ArchitectureError

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    # Which tokens each token sees.
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "attention_chunk_size": (),
    "num_kv_shared_layers": (0,),
    # Positions.
    "alibi": (False,),
    "rotary_pct": (1,),
    "rope_interleaved": (False,),
    "rope_interleave": (False,),
    "rope_local_base_freq": (),
    "sliding_window_pattern": (),
    # Factors and caps.
    "scale_emb": (1,),
    "scale_depth": (),
    "dim_model_base": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "embedding_scale": (1,),
    "lm_head_multiplier": (1,),
    "key_multiplier": (1,),
    "attention_in_multiplier": (1,),
    "attention_out_multiplier": (1,),
    "attention_value_scale": (1,),
    "attn_temperature_tuning": (False,),
    "output_logit_soft_cap": (0,),
    "logits_soft_cap": (0,),
    "attn_logit_soft_cap": (0,),
    "output_multiplier": (1,),
    # Norms, activations and layers.
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "clip_qkv": (),
    "hidden_activation": ("silu",),
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "per_layer_config": (),
    # Mixtures of experts.
    "scoring_func": ("softmax",),
    "score_func": ("softmax",),
    "expert_selection_fn": ("softmax",),
    "topk_method": ("greedy",),
    "n_group": (0, 1),
    "num_expert_group": (1,),
    "topk_group": (0, 1),
    "moe_router_logit_softcapping": (0,),
    "routed_scaling_factor": (1,),
    "moe_routed_scaling_factor": (1,),
    "router_scaling_factor": (1,),
    "route_scale": (1,),
    "n_shared_experts": (0,),
    "num_shared_experts": (0,),
    "moe_num_shared_experts": (0,),
    "first_k_dense_replace": (0,),
    "moe_layer_freq": (1,),
}
"""The values that change nothing; null is one of each."""


def refuse_foreign(raw: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ArchitectureError for a field that would change the answers, if the family does not know it."""
    for name, neutral in NEUTRAL.items():
        value = raw.get(name)
        if value is not None and value not in neutral and name not in known:
            raise ArchitectureError(
                f"config.json has {name} {value!r}, which no replica computes: it is of another model, or of "
                "its author's own code"
            )
    if "auto_map" not in known:
        _refuse_code(raw.get("auto_map"))


def _refuse_code(places: Any) -> None:
    """Raise ArchitectureError for a model with code of its own. A tokenizer or a config may have some."""
    if isinstance(places, Mapping) and any(str(name).startswith("AutoModel") for name in places):
        raise ArchitectureError(
            "config.json has auto_map with its author's own code of the model, which no replica runs: if it "
            "computes what transformers' own class does, remove the field"
        )


_DENSE, _MIXTURE = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
_IMAGES: Final = "Qwen3VLForConditionalGeneration"
_OF_MAKER: Final[Mapping[str, str]] = {
    "qwen2_5omni": "Qwen2_5_VLForConditionalGeneration",
    "qwen": _DENSE,
    "minist": "Ministral3ForCausalLM",
    "mist": "MistralForCausalLM",
    "llava": _IMAGES,
    "llama": "LlamaForCausalLM",
    "smollm": "SmolLM3ForCausalLM",
    "gemma": "Gemma3ForCausalLM",
    "phi": "Phi3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "chatglm": "GlmForCausalLM",
    "glm": "Glm4ForCausalLM",
    "ernie": "Ernie4_5ForCausalLM",
    "internlm": "InternLM3ForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
}
"""By the beginning of a name in small letters."""
_MIXTURES: Final = ("deepseek", "minimax", "qwen3next", "llama4", "jamba")
"""The beginnings of mixtures' names that do not say so."""
_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_NO_TEXT: Final = re.compile(
    r"Classification|For(Question|Reward|Masked)|(?<!LMHead)(?<!Chat)(?<!ChatGLM)(?<!Omni)Model$"
)
_GENERATES: Final = re.compile(r"CausalLM|LMHeadModel|ChatModel")


def propose(asked: str, raw: Mapping[str, Any]) -> str:
    """Return a refusal's part about an architecture: its name, and the nearest one that is served."""
    if _NO_TEXT.search(asked):
        return f"{asked}, which generates no text: neither embeddings nor scores are served; "
    near = _find_nearest(asked, raw)
    return f"{asked}; the nearest is {near}; " if near else f"{asked}; "


def _find_nearest(asked: str, raw: Mapping[str, Any]) -> str | None:
    """Return a served one of the same kind, if possible of the same maker; None for unknown kinds."""
    name, text = asked.lower(), raw.get("text_config")
    if name.startswith("mixt"):
        return "MixtralForCausalLM"
    if "moe" in name or name.startswith(_MIXTURES) or _has_experts(raw) or _has_experts(text):
        return _MIXTURE
    near = next((near for beginning, near in _OF_MAKER.items() if name.startswith(beginning)), None)
    if near or isinstance(text, Mapping):
        return near or _IMAGES
    return _DENSE if _GENERATES.search(asked) else None


def _has_experts(raw: Any) -> bool:
    counts = [raw.get(name) for name in _COUNTS] if isinstance(raw, Mapping) else []
    return any(isinstance(count, int) and count > 0 for count in counts)
