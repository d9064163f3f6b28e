"""Fields that change what other authors' code computes. No family computes it, so they are refused by name.

transformers ignores most of them for the families here. A config that has one was written for another model.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from millrace_fit.errors import ArchitectureError

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    # Who sees whom.
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "attention_chunk_size": (),
    "num_kv_shared_layers": (0,),
    # Positions.
    "alibi": (False,),
    "rotary_pct": (1,),
    "rope_interleaved": (False,),
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
    # Norms, activations and layers.
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "clip_qkv": (),
    "hidden_activation": ("silu",),
    "parallel_attn": (False,),
    "per_layer_config": (),
    # Mixtures of experts.
    "scoring_func": ("softmax",),
    "routed_scaling_factor": (1,),
    "n_shared_experts": (0,),
    "first_k_dense_replace": (0,),
}
"""The values that change nothing; null is one of each."""


def refuse_foreign(raw: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ArchitectureError for a field that would change the answers, if the family does not know it."""
    for name, neutral in _NEUTRAL.items():
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
