"""The list of a decoder's tensors: each one's size, its role, and how workers share it.

Loader, memory, shards and formats all follow from it. Names in files are the family's.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace_fit.shape import AttentionShape, DecoderShape, ExpertsShape, LayerShape, MlpShape
from millrace_fit.shard import Cut, Shard, whole

GROUP: Final = 32
"""Inputs with one scale in INT4, and the unit of columns for each worker: `linear/rounding.py`."""


class Role(enum.Enum):
    """What a module does in the model."""

    EMBEDDING = "embedding"
    ATTENTION_NORM = "attention norm"
    QKV = "queries, keys and values"
    QUERY_NORM = "norm of each query head"
    KEY_NORM = "norm of each key head"
    SINKS = "score of no token, of each query head"
    OUTPUT = "attention's output"
    ATTENTION_OUTPUT_NORM = "norm of attention's output"
    MLP_NORM = "MLP's norm"
    GATE_UP = "gate and its factor"
    DOWN = "MLP's output"
    MLP_OUTPUT_NORM = "norm of the MLP's output"
    ROUTER = "router"
    EXPERTS_GATE_UP = "gate and its factor, of each expert"
    EXPERTS_DOWN = "output of each expert"
    SHARED_ROUTER = "gate of the shared expert"
    SHARED_GATE_UP = "gate and its factor, of the shared expert"
    SHARED_DOWN = "output of the shared expert"
    NORM = "last norm"
    HEAD = "head"


class Axis(NamedTuple):
    """The rows or the columns of a tensor, and how workers share them."""

    size: int
    unit: int = 0
    """Workers have whole units; 0: each has all."""
    heads: AttentionShape | None = None
    """Units are this attention's query heads, each with an equal part of the size."""
    is_kv: bool = False
    """Units are KV heads instead."""

    def cut(self, shard: Shard) -> Cut:
        """Return a worker's part. Raises ArchitectureError if it can't have one."""
        if self.heads is not None:
            mine = shard.cut_heads(self.heads.num_heads, self.heads.num_kv_heads)
            cut = mine.kv if self.is_kv else mine.query
            return cut.times(self.size // cut.total)
        return shard.cut(self.size, self.unit) if self.unit else whole(self.size)


class Part(NamedTuple):
    """One stored tensor of a module."""

    name: str
    """As families name it."""
    rows: Axis
    order: tuple[int, ...] | None = None
    """The rows of each head in the order in which kernels have them; None: as they are stored."""


@dataclass(frozen=True, slots=True)
class Module:
    """Tensors that are one operation of the model: projections of the same input lie one below the other."""

    role: Role
    parts: tuple[Part, ...]
    columns: Axis | None = None
    """None for vectors, such as a norm's scale."""
    has_bias: bool = False
    is_gated: bool = False
    """Whether its two parts are a gate and its factor."""
    is_summed: bool = False
    """Whether workers have columns of it, so that only one of them adds the bias."""
    is_table: bool = False
    """Whether it has a row for each token of the vocabulary."""
    is_rounded: bool = True
    """Whether it has another format if weights are rounded."""
    is_float: bool = False
    """Whether it is kept in float32, whatever the served type is."""
    count: int = 1
    """Such modules in a layer: one for each expert."""
    factor: float = 1.0
    """Of its weights and biases, which the loader multiplies."""
    addend: float = 0.0
    """Added to its weights before that."""

    @property
    def is_linear(self) -> bool:
        """Whether it is a product, which a checkpoint may have quantised."""
        return self.columns is not None and self.role is not Role.EMBEDDING

    def adds_bias(self, shard: Shard) -> bool:
        """Whether a worker reads the bias."""
        return self.has_bias and (shard.is_first or not self.is_summed)


def list_modules(shape: DecoderShape) -> Iterator[tuple[int | None, Module]]:
    """Yield each module with its layer's number, in the order in which the model runs; None: in no layer."""
    for module in list_outer(shape):
        if module.role is Role.NORM:
            yield from ((number, one) for number, one in _list_inner(shape))
        yield None, module


def _list_inner(shape: DecoderShape) -> Iterator[tuple[int, Module]]:
    for number, layer in enumerate(shape.layers):
        for module in list_layer(shape, layer):
            yield number, module


def list_outer(shape: DecoderShape) -> Iterator[Module]:
    """Yield the modules outside of layers. A tied head is no module of its own."""
    rows, width = Axis(shape.vocabulary_size, 1), Axis(shape.width)
    yield Module(Role.EMBEDDING, (Part("embedding", rows),), width, is_table=True)
    yield _make_norm(shape, Role.NORM, Part("norm", width), shape.logit_factor)
    if not shape.is_tied:
        yield Module(Role.HEAD, (Part("head", rows),), width, is_table=True)


def list_layer(shape: DecoderShape, layer: LayerShape) -> Iterator[Module]:
    """Yield the modules of a layer.

    The residual is kept divided by the embedding's factor, so that the embedding can stay as it is.
    """
    width, factor = Axis(shape.width), shape.output_factor / shape.embedding_factor
    inner = 1.0 if layer.is_normed_twice else factor
    yield _make_norm(shape, Role.ATTENTION_NORM, Part("attention_norm", width))
    yield from _list_attention(shape, layer.attention, inner)
    if layer.is_normed_twice:
        yield _make_norm(shape, Role.ATTENTION_OUTPUT_NORM, Part("attention_output_norm", width), factor)
    yield _make_norm(shape, Role.MLP_NORM, Part("mlp_norm", width))
    match layer.mlp:
        case MlpShape():
            yield from _list_mlp(width, layer.mlp, inner)
        case ExpertsShape():
            yield from _list_experts(width, layer.mlp, inner)
    if layer.is_normed_twice:
        yield _make_norm(shape, Role.MLP_OUTPUT_NORM, Part("mlp_output_norm", width), factor)


def _make_norm(decoder: DecoderShape, role: Role, part: Part, factor: float = 1.0) -> Module:
    return Module(role, (part,), factor=factor, addend=1.0 if decoder.are_norms_less_one else 0.0)


def _list_attention(decoder: DecoderShape, shape: AttentionShape, factor: float) -> Iterator[Module]:
    width = Axis(decoder.width)
    query, kv = Axis(shape.query, heads=shape), Axis(shape.kv, heads=shape, is_kv=True)
    order = shape.head_order
    parts = (Part("query", query, order), Part("key", kv, order), Part("value", kv))
    yield Module(Role.QKV, parts, width, has_bias=shape.has_bias)
    if shape.has_head_norms:
        head = Axis(shape.head_dim)
        yield _make_norm(decoder, Role.QUERY_NORM, Part("query_norm", head, order))
        yield _make_norm(decoder, Role.KEY_NORM, Part("key_norm", head, order))
    if shape.has_sinks:
        yield Module(Role.SINKS, (Part("sinks", Axis(shape.num_heads, heads=shape)),), is_float=True)
    output, has_bias = (Part("output", width),), shape.has_output_bias
    yield Module(Role.OUTPUT, output, query, has_bias=has_bias, is_summed=True, factor=factor)


def _list_mlp(width: Axis, shape: MlpShape, factor: float) -> Iterator[Module]:
    inner, has_bias = Axis(shape.width, GROUP), shape.has_bias
    parts = (Part("gate", inner), Part("up", inner))
    yield Module(Role.GATE_UP, parts, width, has_bias=has_bias, is_gated=True)
    down = (Part("down", width),)
    yield Module(Role.DOWN, down, inner, has_bias=has_bias, is_summed=True, factor=factor)


def _list_experts(width: Axis, shape: ExpertsShape, factor: float) -> Iterator[Module]:
    inner, count, has_bias = Axis(shape.width, GROUP), shape.num_experts, shape.has_bias
    yield Module(Role.ROUTER, (Part("router", Axis(count)),), width, has_bias=has_bias, is_rounded=False)
    parts, down = (Part("expert_gate", inner), Part("expert_up", inner)), (Part("expert_down", width),)
    yield Module(Role.EXPERTS_GATE_UP, parts, width, has_bias=has_bias, is_gated=True, count=count)
    yield Module(
        Role.EXPERTS_DOWN, down, inner, has_bias=has_bias, is_summed=True, count=count, factor=factor
    )
    if shape.shared_width is not None:
        yield from _list_shared(width, Axis(shape.shared_width, GROUP), factor)


def _list_shared(width: Axis, inner: Axis, factor: float) -> Iterator[Module]:
    """Yield a mixture of one: its router has one row, and its weight is that row's sigmoid."""
    yield Module(Role.SHARED_ROUTER, (Part("shared_router", Axis(1)),), width, is_rounded=False)
    parts, down = (Part("shared_gate", inner), Part("shared_up", inner)), (Part("shared_down", width),)
    yield Module(Role.SHARED_GATE_UP, parts, width, is_gated=True)
    yield Module(Role.SHARED_DOWN, down, inner, is_summed=True, factor=factor)
