"""A decoder of tokens: layers of attention and MLP, each normalised before and added after.

Its shape is the family's (`millrace_fit/families/`). Llama is the pattern (Touvron et al., 2023).
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from torch import Tensor

from millrace_fit.families.registry import Declared, declare
from millrace_fit.modules import Role
from millrace_fit.shape import AttentionShape, DecoderShape, ExpertsShape, LayerShape, MlpShape
from millrace_fit.shard import ALONE, Shard
from millrace_kernels.step import Angles, CacheLayer, HeadNorms, Heads, Routing, Scoring, Step
from millrace_kernels.weights import Shares
from millrace_runtime.layers import (
    Attention,
    Embedding,
    GatedLinear,
    Head,
    Linear,
    Mixture,
    RMSNorm,
    rotary_angles,
)
from millrace_runtime.models.model import Architecture, KvShape, Weights
from millrace_runtime.models.modules import DecoderModules, Modules


class Place(NamedTuple):
    """A layer's attention in the model."""

    heads: Heads
    layer: CacheLayer
    angles: Angles | None
    """None: it knows no positions."""


class Epsilons(NamedTuple):
    """The numbers that norms add to the mean square."""

    residual: float
    """Of the residual, which is kept divided by the embedding's factor: so the embedding stays as stored."""
    other: float


class SelfAttention:
    """Grouped-query self-attention."""

    def __init__(self, modules: Modules, kind: AttentionShape, place: Place, epsilon: float) -> None:
        self.qkv = Linear(modules.matrix(Role.QKV))
        norms = None
        if Role.QUERY_NORM in modules.modules:
            norms = HeadNorms(modules.vector(Role.QUERY_NORM), modules.vector(Role.KEY_NORM), epsilon)
        sinks = modules.vector(Role.SINKS) if kind.has_sinks else None
        self.attention = Attention(place.layer, place.heads, place.angles, norms, kind.scale, sinks=sinks)
        self.output = Linear(modules.matrix(Role.OUTPUT))

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + attention(x), each [tokens, width]."""
        return self.output.add_to(residual, self.attention(self.qkv(x, step), step), step)

    def sum(self, x: Tensor, step: Step) -> Tensor:
        """Return attention(x), [tokens, width]."""
        return self.output.sum(self.attention(self.qkv(x, step), step), step)


class MLP:
    """down(silu(gate(x)) * up(x)), or with gelu."""

    def __init__(self, modules: Modules, shape: MlpShape) -> None:
        self.gate_up = GatedLinear(modules.matrix(Role.GATE_UP), is_gelu=shape.is_gelu)
        self.down = Linear(modules.matrix(Role.DOWN))

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + MLP(x), each [tokens, width]."""
        return self.down.add_to(residual, self.gate_up(x, step), step)

    def sum(self, x: Tensor, step: Step) -> Tensor:
        """Return MLP(x), [tokens, width]."""
        return self.down.sum(self.gate_up(x, step), step)


class SharedMixture:
    """A mixture, and beside it an expert for every token, which is a mixture of one."""

    def __init__(self, routed: Mixture, shared: Mixture) -> None:
        self.routed, self.shared = routed, shared

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + both, each [tokens, width]."""
        return self.shared.add_to(self.routed.add_to(residual, x, step), x, step)


def build_mlp(shape: MlpShape | ExpertsShape, modules: Modules) -> MLP | Mixture | SharedMixture:
    """Return an MLP, or the experts of which each token has some."""
    match shape:
        case MlpShape():
            return MLP(modules, shape)
        case ExpertsShape():
            routing = Routing(shape.num_chosen, is_normalised=shape.is_normalised)
            experts = modules.experts(Role.EXPERTS_GATE_UP), modules.experts(Role.EXPERTS_DOWN)
            routed = Mixture(modules.router(Role.ROUTER), routing, *experts, limit=shape.gate_limit)
            return routed if shape.shared_width is None else SharedMixture(routed, build_shared(modules))


def build_shared(modules: Modules) -> Mixture:
    """Return the expert of every token. Its weight is the sigmoid of its gate's score."""
    experts = modules.experts(Role.SHARED_GATE_UP), modules.experts(Role.SHARED_DOWN)
    routing = Routing(1, Scoring.SIGMOID, is_normalised=False)
    return Mixture(modules.router(Role.SHARED_ROUTER), routing, *experts)


class Layer:
    """Attention and MLP, each normalised before and added after."""

    def __init__(self, modules: Modules, kind: LayerShape, place: Place, epsilons: Epsilons) -> None:
        self.attention_norm = RMSNorm(modules.vector(Role.ATTENTION_NORM), epsilons.residual)
        self.attention = SelfAttention(modules, kind.attention, place, epsilons.other)
        self.mlp_norm = RMSNorm(modules.vector(Role.MLP_NORM), epsilons.residual)
        self.mlp = build_mlp(kind.mlp, modules)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [tokens, width] to the same shape."""
        x = self.attention.add_to(x, self.attention_norm(x, step), step)
        return self.mlp.add_to(x, self.mlp_norm(x, step), step)


class TwiceNormedLayer:
    """Attention and MLP, each normalised before, and again before it is added."""

    def __init__(self, modules: Modules, kind: LayerShape, place: Place, epsilons: Epsilons) -> None:
        assert isinstance(kind.mlp, MlpShape), "a mixture adds to the residual itself"
        self.attention_norm = RMSNorm(modules.vector(Role.ATTENTION_NORM), epsilons.residual)
        self.attention = SelfAttention(modules, kind.attention, place, epsilons.other)
        self.attention_output_norm = RMSNorm(modules.vector(Role.ATTENTION_OUTPUT_NORM), epsilons.other)
        self.mlp_norm = RMSNorm(modules.vector(Role.MLP_NORM), epsilons.residual)
        self.mlp = MLP(modules, kind.mlp)
        self.mlp_output_norm = RMSNorm(modules.vector(Role.MLP_OUTPUT_NORM), epsilons.other)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [tokens, width] to the same shape."""
        x = step.add(self._attend(x, step), x)
        return step.add(self._map(x, step), x)

    def _attend(self, x: Tensor, step: Step) -> Tensor:
        attended = self.attention.sum(self.attention_norm(x, step), step)
        return self.attention_output_norm(attended, step)

    def _map(self, x: Tensor, step: Step) -> Tensor:
        mapped = self.mlp.sum(self.mlp_norm(x, step), step)
        return self.mlp_output_norm(mapped, step)


class Decoder:
    """The model: computes hidden states from tokens, and logits from hidden states."""

    def __init__(self, declared: Declared, shard: Shard, weights: Weights, length: int) -> None:
        shape, modules = declared.shape, DecoderModules(declared, weights, shard)
        shares = share_rows(shard, shape.vocabulary_size)
        table = modules.outer.table(Role.EMBEDDING)
        self.embedding = Embedding(table, shares)
        self.layers = _build_layers(shape, modules, length)
        self.norm = RMSNorm(modules.outer.vector(Role.NORM), find_epsilons(shape).residual)
        self.head = Head(table if shape.is_tied else modules.outer.table(Role.HEAD), shares)
        modules.skip_unread()

    def forward(self, step: Step) -> Tensor:
        """Return the hidden states of the step's tokens, [tokens, width]."""
        x = self.embedding(step)
        for layer in self.layers:
            x = layer(x, step)
        return x

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Return float32 logits [rows, vocabulary] of chosen hidden states [rows, width]."""
        return self.head(self.norm(hidden, step), step)


def _build_layers(
    shape: DecoderShape, modules: DecoderModules, length: int
) -> list[Layer | TwiceNormedLayer]:
    @cache
    def make_angles(head_dim: int, rotary_dim: int | None, theta: float | None) -> Angles:
        base, scaling = (shape.theta, shape.scaling) if theta is None else (theta, None)
        device = modules.weights.device
        return rotary_angles(head_dim, base, length, scaling, device, rotary_dim=rotary_dim)

    layers = []
    for number, kind in enumerate(shape.layers):
        attention, angles = kind.attention, None
        if attention.has_rotary:
            angles = make_angles(attention.head_dim, attention.rotary_dim, attention.theta)
        layer = CacheLayer(number, find_group(shape, kind), attention.window)
        place = Place(cut_heads(attention, modules.shard), layer, angles)
        build = TwiceNormedLayer if kind.is_normed_twice else Layer
        layers.append(build(modules.layer(number, kind), kind, place, find_epsilons(shape)))
    return layers


def find_epsilons(shape: DecoderShape) -> Epsilons:
    """Return the epsilons of norms, for a residual divided by the embedding's factor."""
    return Epsilons(shape.epsilon / shape.embedding_factor**2, shape.epsilon)


def find_group(shape: DecoderShape, layer: LayerShape) -> int:
    """Return the KV group of a layer: layers with the same window share one."""
    return shape.windows.index(layer.attention.window)


def cut_heads(attention: AttentionShape, shard: Shard) -> Heads:
    """Return a worker's heads. Raises ArchitectureError if they can't be shared so."""
    mine = shard.cut_heads(attention.num_heads, attention.num_kv_heads)
    return Heads(mine.query.size, mine.kv.size, attention.head_dim)


def share_rows(shard: Shard, total: int) -> Shares | None:
    """Return how all workers share a table's rows; None for a single worker.

    Raises ArchitectureError if a worker would have none.
    """
    if shard.count == 1:
        return None
    parts = [Shard(index, shard.count).cut(total, 1) for index in range(shard.count)]
    return Shares(shard.index, (0, *(part.end for part in parts)))


def find_architecture(raw: Mapping[str, Any], shard: Shard = ALONE) -> Architecture:
    """Return the architecture of a config.json. Raises ArchitectureError, which names the field.

    It is the shard's part of the model: all workers of a group run its steps together.
    """
    declared = declare(raw)
    shape = declared.shape
    heads = [cut_heads(kind.attention, shard) for kind in shape.layers]
    return Architecture(
        vocabulary_size=shape.vocabulary_size,
        max_length=shape.max_length,
        kv_shapes=tuple(
            KvShape(one.num_kv_heads, one.head_dim, find_group(shape, kind))
            for one, kind in zip(heads, shape.layers, strict=True)
        ),
        groups=shape.windows,
        quantization=declared.quantization,
        beside=declared.family.beside,
        build=partial(Decoder, declared, shard),
    )
