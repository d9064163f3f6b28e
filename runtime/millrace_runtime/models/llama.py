"""Llama: a decoder of pre-normalised attention and gated MLP blocks (Touvron et al., 2023).

Mistral (within its sliding window) and Qwen 2 (biases on queries, keys and values) are the same model.
Weight names are the Hugging Face checkpoints'.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from millrace_fit.config import Family, LlamaConfig, parse_llama_config
from millrace_fit.shard import ALONE, Cut, Shard, whole
from millrace_kernels.linear.quantized_reference import GROUP
from millrace_kernels.step import Angles, CacheLayer, Heads, Shares, Step
from millrace_runtime.layers import Attention, Embedding, GatedLinear, Head, Linear, RMSNorm, rotary_angles
from millrace_runtime.models.model import Architecture, KvShape, Weights


class LlamaAttention:
    """Grouped-query self-attention."""

    def __init__(
        self, config: LlamaConfig, weights: Weights, layer: int, angles: Angles, shard: Shard
    ) -> None:
        prefix, mine = f"model.layers.{layer}.self_attn", cut_attention(config, shard)
        parts = {f"{prefix}.q_proj": mine.query, f"{prefix}.k_proj": mine.kv, f"{prefix}.v_proj": mine.kv}
        self.qkv = Linear(weights.matrix(parts, whole(config.width), has_bias=config.has_qkv_bias))
        self.attention = Attention(CacheLayer(layer), mine.heads, angles)
        part, has_bias = {f"{prefix}.o_proj": whole(config.width)}, config.has_output_bias and shard.is_first
        self.output = Linear(weights.matrix(part, mine.query, has_bias=has_bias))

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + attention(x), each [tokens, width]."""
        return self.output.add_to(residual, self.attention(self.qkv(x, step), step), step)


class LlamaMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig, weights: Weights, layer: int, shard: Shard) -> None:
        prefix, has_bias = f"model.layers.{layer}.mlp", config.has_mlp_bias
        gate, up, mine = f"{prefix}.gate_proj", f"{prefix}.up_proj", shard.cut(config.mlp_width, GROUP)
        self.gate_up = GatedLinear(weights.gated_matrix(gate, up, mine, config.width, has_bias=has_bias))
        part = {f"{prefix}.down_proj": whole(config.width)}
        self.down = Linear(weights.matrix(part, mine, has_bias=has_bias and shard.is_first))

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + MLP(x), each [tokens, width]."""
        return self.down.add_to(residual, self.gate_up(x, step), step)


class LlamaLayer:
    """Attention and MLP, each normalised before and added after."""

    def __init__(
        self, config: LlamaConfig, weights: Weights, layer: int, angles: Angles, shard: Shard
    ) -> None:
        prefix, width, epsilon = f"model.layers.{layer}", config.width, config.epsilon
        self.attention_norm = RMSNorm(weights.vector(f"{prefix}.input_layernorm.weight", width), epsilon)
        self.attention = LlamaAttention(config, weights, layer, angles, shard)
        self.mlp_norm = RMSNorm(weights.vector(f"{prefix}.post_attention_layernorm.weight", width), epsilon)
        self.mlp = LlamaMLP(config, weights, layer, shard)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [tokens, width] to the same shape."""
        x = self.attention.add_to(x, self.attention_norm(x, step), step)
        return self.mlp.add_to(x, self.mlp_norm(x, step), step)


class Llama:
    """The model: computes hidden states from tokens, and logits from hidden states."""

    def __init__(self, config: LlamaConfig, shard: Shard, weights: Weights, length: int) -> None:
        rows, shares = shard.cut(config.vocabulary_size, 1), share_rows(shard, config.vocabulary_size)
        table = weights.table("model.embed_tokens", rows, config.width)
        angles = rotary_angles(config.head_dim, config.theta, length, config.scaling, weights.device)
        self.embedding = Embedding(table, shares)
        self.layers = [
            LlamaLayer(config, weights, layer, angles, shard) for layer in range(config.num_layers)
        ]
        self.norm = RMSNorm(weights.vector("model.norm.weight", config.width), config.epsilon)
        head = table if config.is_tied else weights.table("lm_head", rows, config.width)
        self.head = Head(head, shares)
        _skip_unneeded(config, weights, shard)

    def forward(self, step: Step) -> Tensor:
        """Return the hidden states of the step's tokens, [tokens, width]."""
        x = self.embedding(step)
        for layer in self.layers:
            x = layer(x, step)
        return x

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Return float32 logits [rows, vocabulary] of chosen hidden states [rows, width]."""
        return self.head(self.norm(hidden, step), step)


def _skip_unneeded(config: LlamaConfig, weights: Weights, shard: Shard) -> None:
    """Skip tensors that are stored and not used.

    These are a tied head, old checkpoints' rotary frequencies, and the biases that only the first shard adds.
    """
    if config.is_tied:
        weights.skip("lm_head.weight")
    weights.skip("model.rotary_emb.inv_freq")
    for layer in range(config.num_layers):
        weights.skip(f"model.layers.{layer}.self_attn.rotary_emb.inv_freq")
        if not shard.is_first:
            weights.skip(f"model.layers.{layer}.self_attn.o_proj.bias")
            weights.skip(f"model.layers.{layer}.mlp.down_proj.bias")


def llama_architecture(family: Family, raw: Mapping[str, Any], shard: Shard = ALONE) -> Architecture:
    """Return the architecture of a Llama-family config.json. Raises ArchitectureError naming the field.

    It is the shard's part of the model: all workers of a group run its steps together.
    """
    config = parse_llama_config(raw, family)
    heads = cut_attention(config, shard).heads
    return Architecture(
        vocabulary_size=config.vocabulary_size,
        max_length=config.max_length,
        window=config.window,
        kv_shapes=(KvShape(heads.num_kv_heads, heads.head_dim),) * config.num_layers,
        build=partial(Llama, config, shard),
    )


class AttentionPart(NamedTuple):
    """One worker's part of each layer's attention."""

    query: Cut
    """Rows of the query's projection, and columns of the output's."""
    kv: Cut
    """Rows of the key's projection, and of the value's."""
    heads: Heads


def cut_attention(config: LlamaConfig, shard: Shard) -> AttentionPart:
    """Return a shard's part of the attention. Raises ArchitectureError if the heads can't be shared so."""
    mine, dim = shard.cut_heads(config.num_heads, config.num_kv_heads), config.head_dim
    return AttentionPart(mine.query.times(dim), mine.kv.times(dim), Heads(mine.query.size, mine.kv.size, dim))


def share_rows(shard: Shard, total: int) -> Shares | None:
    """Return how all workers share a table's rows; None for a single worker.

    Raises ArchitectureError if a worker would have none.
    """
    if shard.count == 1:
        return None
    parts = [Shard(index, shard.count).cut(total, 1) for index in range(shard.count)]
    return Shares(shard.index, (0, *(part.end for part in parts)))
