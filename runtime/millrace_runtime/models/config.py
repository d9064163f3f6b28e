"""A Llama-family config.json, checked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace_runtime.layers.rotary import LinearScaling, Llama3Scaling, RotaryScaling
from millrace_runtime.models.errors import ArchitectureError

QKV_BIAS = frozenset({"Qwen2ForCausalLM"})
"""Architectures whose query, key and value projections have biases without config.json saying so."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a Llama-family model."""

    vocabulary_size: int
    width: int
    mlp_width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float
    """Added to the mean square in RMSNorm."""
    theta: float
    """Base of the rotary frequencies."""
    scaling: RotaryScaling | None
    max_length: int
    """Positions that the model was trained for."""
    is_tied: bool
    """The head shares the embedding's weight."""
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool


def parse_llama_config(raw: Mapping[str, Any]) -> LlamaConfig:
    """Read a Hugging Face config. Raises ArchitectureError naming the field."""
    _refuse_unsupported(raw)
    num_heads, width = _count(raw, "num_attention_heads"), _count(raw, "hidden_size")
    num_kv_heads = _count(raw, "num_key_value_heads", num_heads)
    head_dim = _count(raw, "head_dim", width // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ArchitectureError(
            f"config.json has {num_heads} attention heads over {num_kv_heads} key-value heads of {head_dim}: "
            "the first must be a multiple of the second, the third even"
        )
    theta, scaling = _rotary(raw)
    has_bias = bool(raw.get("attention_bias", False))
    is_qwen = bool(QKV_BIAS & set(raw.get("architectures") or ()))
    return LlamaConfig(
        vocabulary_size=_count(raw, "vocab_size"),
        width=width,
        mlp_width=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        epsilon=_number(raw, "rms_norm_eps", 1e-6),
        theta=theta,
        scaling=scaling,
        max_length=_count(raw, "max_position_embeddings"),
        is_tied=bool(raw.get("tie_word_embeddings", False)),
        has_qkv_bias=has_bias or is_qwen,
        has_output_bias=has_bias and not is_qwen,
        has_mlp_bias=bool(raw.get("mlp_bias", False)),
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise ArchitectureError(f'config.json has hidden_act "{activation}"; only "silu" is supported')
    if "quantization_config" in raw:
        raise ArchitectureError(
            "config.json has a quantization_config; quantised checkpoints are not supported yet: "
            "serve the unquantised one"
        )
    window = raw.get("sliding_window")
    if window and raw.get("use_sliding_window", True) and window < raw.get("max_position_embeddings", 0):
        raise ArchitectureError(
            f"config.json has sliding_window {window}, which is not supported yet: serve a model without it"
        )


def _count(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArchitectureError(f"config.json has {name} {value!r}; it must be a whole number of at least 1")
    return value


def _number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArchitectureError(f"config.json has {name} {value!r}; it must be a number")
    if not math.isfinite(value) or value <= 0:
        raise ArchitectureError(f"config.json has {name} {value!r}; it must be above 0")
    return float(value)


def _rotary(raw: Mapping[str, Any]) -> tuple[float, RotaryScaling | None]:
    """Read both spellings: rope_theta with rope_scaling, and the newer rope_parameters that holds all."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = _number(rope, "rope_theta") if "rope_theta" in rope else _number(raw, "rope_theta", 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, LinearScaling(_number(rope, "factor"))
    if kind == "llama3":
        return theta, Llama3Scaling(
            _number(rope, "factor"),
            _number(rope, "low_freq_factor"),
            _number(rope, "high_freq_factor"),
            _count(rope, "original_max_position_embeddings"),
        )
    raise ArchitectureError(
        f'config.json has rope_type "{kind}"; supported are "default", "linear" and "llama3"'
    )
