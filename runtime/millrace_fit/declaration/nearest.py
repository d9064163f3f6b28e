"""The hint for a refused architecture: the served one that comes closest, or that it generates no text."""

import re
from collections.abc import Mapping
from typing import Any, Final

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
    """Return what the refusal says of an architecture: it has the name, too."""
    if _NO_TEXT.search(asked):
        return f"{asked}, which generates no text: neither embeddings nor scores are served; "
    near = _find_nearest(asked, raw)
    return f"{asked}; the nearest is {near}; " if near else f"{asked}; "


def _find_nearest(asked: str, raw: Mapping[str, Any]) -> str | None:
    """Return one of the same kind, and of the same makers if there is one; None for unknown kinds."""
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
