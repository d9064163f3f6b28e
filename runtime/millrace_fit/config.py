"""A Llama-family config.json, checked, with the scaling of its rotary position embedding."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace_fit.errors import ArchitectureError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: it stretches long wavelengths by `factor`, keeps short ones, and has a ramp between."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_length: int


RotaryScaling = LinearScaling | Llama3Scaling


MAX_COUNT: Final = 2**53 - 1
"""The largest count: not every JSON parser reads larger numbers."""


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture's defaults for fields that config.json leaves out, as in transformers."""

    has_qkv_bias: bool = False
    """Whether the projections of query, key and value have biases, and the output's has none."""
    reads_biases: bool = True
    """Whether `attention_bias` and `mlp_bias` are read."""
    num_kv_heads: int | None = None
    """The default of `num_key_value_heads`; None: as many as heads."""
    window: int | None = None
    """The default of `sliding_window`."""
    has_window: bool | None = True
    """The default of `use_sliding_window`; None: the architecture does not read it."""
    num_unwindowed: int | None = None
    """The default of `max_window_layers`; None: every layer has the window."""


# Llama's `sliding_window` counts: transformers' mask ignores it, but its cache drops the keys outside it.
LLAMA: Final = Family()
MISTRAL: Final = Family(reads_biases=False, num_kv_heads=8, window=4096, has_window=None)
QWEN2: Final = Family(
    has_qkv_bias=True,
    reads_biases=False,
    num_kv_heads=32,
    window=4096,
    has_window=False,
    num_unwindowed=28,
)
FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
}
"""The supported architectures, by their names in config.json."""

ROPE_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
}
"""The numbers of each kind of rotary scaling."""


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
    window: int | None
    """A token sees itself and the `window` - 1 before it; None: all before it."""
    is_tied: bool
    """Whether the head shares the embedding's weight."""
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool


def find_architecture_name(raw: Mapping[str, Any]) -> str:
    """Return the first supported architecture of a config.json. Raises ArchitectureError."""
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArchitectureError(f"config.json has architectures {names!r}; it must be a list of names")
    for name in map(str, names):
        if name in FAMILIES:
            return name
    asked = ", ".join(names) or "none"
    raise ArchitectureError(
        f"config.json names the architecture {asked}; supported are {', '.join(sorted(FAMILIES))}"
    )


def parse_llama_config(raw: Mapping[str, Any], family: Family) -> LlamaConfig:
    """Check and return a Hugging Face config. Raises ArchitectureError, which names the field."""
    _refuse_unsupported(raw)
    num_heads, width = _count(raw, "num_attention_heads"), _count(raw, "hidden_size")
    num_kv_heads = _num_kv_heads(raw, family, num_heads)
    head_dim = _count(raw, "head_dim", width // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ArchitectureError(
            f"config.json has {num_heads} attention heads over {num_kv_heads} key-value heads of {head_dim}: "
            "the first must be a multiple of the second, the third even"
        )
    theta, scaling = _rotary(raw)
    has_bias = family.reads_biases and _flag(raw, "attention_bias")
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
        window=_window(raw, family),
        is_tied=_flag(raw, "tie_word_embeddings"),
        has_qkv_bias=has_bias or family.has_qkv_bias,
        has_output_bias=has_bias,
        has_mlp_bias=family.reads_biases and _flag(raw, "mlp_bias"),
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise ArchitectureError(f'config.json has hidden_act "{activation}"; only "silu" is supported')
    if (quantization := raw.get("quantization_config")) is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        named = f" ({method})" if method else ""
        raise ArchitectureError(
            f"config.json has a quantization_config{named}; quantised checkpoints are not supported yet: "
            "serve the unquantised one"
        )


def _num_kv_heads(raw: Mapping[str, Any], family: Family, num_heads: int) -> int:
    """Return the number of KV heads. null means as many as heads. A missing field has a default."""
    default = None if "num_key_value_heads" in raw else family.num_kv_heads
    return _count(raw, "num_key_value_heads", default or num_heads)


def _window(raw: Mapping[str, Any], family: Family) -> int | None:
    has_window = family.has_window is None or _flag(raw, "use_sliding_window", default=family.has_window)
    if not has_window or raw.get("sliding_window", family.window) is None:
        return None
    window = _count(raw, "sliding_window", family.window)
    return window if _has_windowed_layer(raw, family) else None


def _has_windowed_layer(raw: Mapping[str, Any], family: Family) -> bool:
    """Whether any layer has the window. `layer_types` names all; the first `max_window_layers` have none."""
    if family.num_unwindowed is None:
        return True
    kinds = raw.get("layer_types")
    if kinds is None:
        num_unwindowed = _count(raw, "max_window_layers", family.num_unwindowed, least=0)
        return _count(raw, "num_hidden_layers") > num_unwindowed
    if not isinstance(kinds, list):
        raise ArchitectureError(f"config.json has layer_types {kinds!r}; it must be a list")
    return any(kind != "full_attention" for kind in kinds)


def _flag(raw: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ArchitectureError(f"config.json has {name} {value!r}; it must be true or false")
    return value


def _count(raw: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArchitectureError(
            f"config.json has {name} {value!r}; it must be a whole number of at least {least}"
        )
    if value > MAX_COUNT:
        raise ArchitectureError(f"config.json has {name} {value}; it must be at most {MAX_COUNT}")
    return value


def _number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArchitectureError(f"config.json has {name} {value!r}; it must be a number")
    if not _is_finite(value) or value <= 0:
        raise ArchitectureError(f"config.json has {name} {value!r}; it must be above 0 and finite")
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _rotary(raw: Mapping[str, Any]) -> tuple[float, RotaryScaling | None]:
    """Return base and scaling, from rope_theta with rope_scaling or from the newer rope_parameters.

    If a config has both spellings, transformers reads only the older one.
    """
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise ArchitectureError(f"config.json has the rotary scaling {rope!r}; it must be an object")
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind not in ROPE_KEYS:
        raise ArchitectureError(
            f'config.json has rope_type "{kind}"; supported are "default", "linear" and "llama3"'
        )
    _refuse_unread(rope, kind)
    _refuse_partial(raw)
    theta = _number(raw if rope.get("rope_theta") is None else rope, "rope_theta", 10000.0)
    return theta, _scaling(rope, kind)


def _scaling(rope: Mapping[str, Any], kind: str) -> RotaryScaling | None:
    if kind == "default":
        return None
    factor = _number(rope, "factor")
    if kind == "linear":
        return LinearScaling(factor)
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    if low >= high:
        raise ArchitectureError(
            f"config.json has low_freq_factor {low} and high_freq_factor {high}: the first must be lower"
        )
    return Llama3Scaling(factor, low, high, _count(rope, "original_max_position_embeddings"))


def _refuse_unread(rope: Mapping[str, Any], kind: str) -> None:
    """Raise ArchitectureError for an unread number that would change the angles."""
    _refuse_partial(rope)
    read = ROPE_KEYS[kind] | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for name in sorted(rope.keys() - read):
        if rope[name] is not None:
            raise ArchitectureError(
                f'config.json has {name} {rope[name]!r} for rope_type "{kind}", which is not supported'
            )


def _refuse_partial(raw: Mapping[str, Any]) -> None:
    if (factor := raw.get("partial_rotary_factor")) not in (None, 1):
        raise ArchitectureError(f"config.json has partial_rotary_factor {factor!r}; only 1 is supported")
