"""Reads the parts of a decoder that nearly all families have, by the names that they have in config.json."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from millrace_fit.declaration.rope import read_rope
from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.rotary import LongRopeScaling, RotaryScaling
from millrace_fit.shape import (
    AttentionShape,
    DecoderShape,
    ExpertsShape,
    LayerShape,
    MlpShape,
    describe_layers,
)


def read_decoder(
    fields: Fields,
    layers: Sequence[LayerShape],
    *,
    theta: float = 10000.0,
    max_length: int,
    epsilon: float = 1e-6,
    is_tied: bool = False,
    may_be_partial: bool = False,
    activation: tuple[str, str] = ("hidden_act", "silu"),
) -> DecoderShape:
    """Return the shape of these layers. The keywords are the family's defaults. Raises ArchitectureError.

    Unless rotary `may_be_partial`, a field by which it would be is refused. `activation` is a field's name
    and the only value that it may have.
    """
    name, only = activation
    if name in fields:
        fields.refuse(name, unless=(only,), advice=f'only "{only}" is supported')
    _check_types(fields, layers)
    rope = read_rope(fields, theta, max_length, may_be_partial=may_be_partial)
    _check_factors(rope.scaling, layers)
    kinds, runs = describe_layers([_drop_idle_window(layer, rope.max_length) for layer in layers])
    return DecoderShape(
        vocabulary_size=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        epsilon=fields.number("rms_norm_eps", epsilon),
        theta=rope.theta,
        scaling=rope.scaling,
        max_length=rope.max_length,
        is_tied=fields.flag("tie_word_embeddings", default=is_tied),
        kinds=kinds,
        runs=runs,
    )


def read_attention(
    fields: Fields,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    has_head_norms: bool = False,
    has_bias: bool = False,
    has_output_bias: bool = False,
) -> AttentionShape:
    """Return attention over all tokens. Raises ArchitectureError.

    `num_kv_heads` and `head_dim` are the family's defaults; None: as many as heads, and the width over the
    heads.
    """
    num_heads, width = fields.count("num_attention_heads"), fields.count("hidden_size")
    # null means as many as heads, whatever the default is.
    default = num_heads if "num_key_value_heads" in fields else num_kv_heads
    num_kv_heads = fields.count("num_key_value_heads", default or num_heads)
    head_dim = fields.count("head_dim", head_dim or max(1, width // num_heads))
    if num_heads % num_kv_heads or head_dim % 2:
        raise ArchitectureError(
            f"config.json has {num_heads} attention heads over {num_kv_heads} key-value heads of {head_dim}: "
            "the first must be a multiple of the second, the third even"
        )
    return AttentionShape(
        num_heads,
        num_kv_heads,
        head_dim,
        has_head_norms=has_head_norms,
        has_bias=has_bias,
        has_output_bias=has_output_bias,
    )


def read_mlp(fields: Fields, *, has_bias: bool = False) -> MlpShape:
    """Return a gated MLP. Raises ArchitectureError."""
    return MlpShape(fields.count("intermediate_size"), has_bias)


def read_window(fields: Fields, *, default: int | None = None) -> int | None:
    """Return the sliding window; None without one. Raises ArchitectureError."""
    if fields.raw.get("sliding_window", default) is None:
        return None
    return fields.count("sliding_window", default)


def read_qwen_windows(fields: Fields) -> Sequence[int | None]:
    """Return each layer's window, as the configs of Qwen 2 and 3 have them. Raises ArchitectureError."""
    window = read_window(fields, default=4096) if fields.flag("use_sliding_window") else None
    num_unwindowed = fields.count("max_window_layers", 28, least=0)
    return read_windows(fields, window, num_unwindowed=num_unwindowed)


def read_windows(fields: Fields, window: int | None, *, num_unwindowed: int) -> Sequence[int | None]:
    """Return each layer's window. Raises ArchitectureError.

    `layer_types` names all; without it the first `num_unwindowed` have none.
    """
    if (named := read_named_windows(fields, window)) is not None:
        return named
    return [None if number < num_unwindowed else window for number in range(fields.num_layers)]


def read_named_windows(fields: Fields, window: int | None) -> Sequence[int | None] | None:
    """Return each layer's window, if `layer_types` names those that have it. Raises ArchitectureError."""
    kinds = fields.items("layer_types", fields.num_layers, "full_attention", "sliding_attention")
    if kinds is None:
        return None
    if window is None and "sliding_attention" in kinds:
        raise ArchitectureError(
            "config.json has sliding_attention in layer_types and no sliding_window in use: set it"
        )
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _check_types(fields: Fields, layers: Sequence[LayerShape]) -> None:
    """Raise ArchitectureError for a `layer_types` whose windows a family does not read.

    transformers' masks ignore them there, but its cache drops the keys outside: no answer is the right one.
    """
    kinds = fields.items("layer_types", len(layers), "attention", "full_attention", "sliding_attention")
    named = (layer for kind, layer in zip(kinds or (), layers, strict=False) if kind == "sliding_attention")
    if any(layer.attention.window is None for layer in named):
        raise ArchitectureError(
            "config.json has sliding_attention in layer_types, and the layers have no window: remove it"
        )


def _check_factors(scaling: RotaryScaling | None, layers: Sequence[LayerShape]) -> None:
    """Raise ArchitectureError unless LongRoPE has a factor for each two numbers that are turned."""
    if not isinstance(scaling, LongRopeScaling):
        return
    for kind in {layer.attention for layer in layers}:
        turned = kind.rotary_dim or kind.head_dim
        for name, factors in (("short_factor", scaling.short), ("long_factor", scaling.long)):
            if len(factors) != turned // 2:
                raise ArchitectureError(
                    f"config.json has {name} of {len(factors)} numbers, and heads turn {turned}: it must "
                    "have one for each two of them"
                )


def _drop_idle_window(layer: LayerShape, max_length: int) -> LayerShape:
    """Return the layer without a window that no sequence reaches, which would be a KV group of its own."""
    window = layer.attention.window
    if window is None or window < max_length:
        return layer
    return replace(layer, attention=replace(layer.attention, window=None))


def read_experts(
    fields: Fields, num_experts: int, num_chosen: int, width: int, *, is_normalised: bool
) -> ExpertsShape:
    """Return a mixture of experts. The numbers are the family's defaults. Raises ArchitectureError.

    transformers takes either name of their count for the other.
    """
    name = "num_experts" if fields.has("num_experts") else "num_local_experts"
    num_experts = fields.count(name, num_experts)
    num_chosen = fields.count("num_experts_per_tok", num_chosen, most=num_experts)
    return ExpertsShape(num_experts, num_chosen, width, is_normalised)


def list_mlps(fields: Fields, experts: ExpertsShape) -> Iterator[MlpShape | ExpertsShape]:
    """Yield each layer's MLP or experts, as Qwen's mixtures have them. Raises ArchitectureError."""
    numbers = fields.raw.get("mlp_only_layers") or []
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ArchitectureError(
            f"config.json has mlp_only_layers {numbers!r}; it must be a list of layers' numbers"
        )
    period = fields.count("decoder_sparse_step", 1)
    for number in range(fields.num_layers):
        yield read_mlp(fields) if number in numbers or (number + 1) % period else experts
