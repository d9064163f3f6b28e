"""Llama: a decoder of pre-normalised attention and gated MLP blocks (Touvron et al., 2023).

Mistral (without a sliding window) and Qwen 2 (biases on queries, keys and values) are the same model.
Weight names are the Hugging Face checkpoints'.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from millrace_runtime.layers.activation import silu_mul_for
from millrace_runtime.layers.attention import Attention, StepContext
from millrace_runtime.layers.embedding import Embedding, Head
from millrace_runtime.layers.linear import Linear
from millrace_runtime.layers.norm import RMSNorm
from millrace_runtime.models.config import LlamaConfig
from millrace_runtime.models.weights import Weights


class LlamaAttention:
    """Grouped-query self-attention."""

    def __init__(self, config: LlamaConfig, weights: Weights, layer: int) -> None:
        prefix = f"model.layers.{layer}.self_attn"
        outputs = config.num_heads * config.head_dim
        kv_outputs = config.num_kv_heads * config.head_dim
        parts = {"q_proj": outputs, "k_proj": kv_outputs, "v_proj": kv_outputs}
        self.qkv = _merged_linear(weights, prefix, parts, config.width, has_bias=config.has_qkv_bias)
        self.attention = Attention(
            layer, config.num_heads, config.num_kv_heads, config.head_dim, weights.device
        )
        self.output = _merged_linear(
            weights, prefix, {"o_proj": config.width}, outputs, has_bias=config.has_output_bias
        )

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Map x [tokens, width] to the same shape."""
        return self.output(self.attention(self.qkv(x), step))


class LlamaMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig, weights: Weights, layer: int) -> None:
        prefix, has_bias = f"model.layers.{layer}.mlp", config.has_mlp_bias
        parts = {"gate_proj": config.mlp_width, "up_proj": config.mlp_width}
        self.gate_up = _merged_linear(weights, prefix, parts, config.width, has_bias=has_bias)
        self.silu_mul = silu_mul_for(weights.device)
        self.down = _merged_linear(
            weights, prefix, {"down_proj": config.width}, config.mlp_width, has_bias=has_bias
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [tokens, width] to the same shape."""
        return self.down(self.silu_mul(self.gate_up(x)))


class LlamaLayer:
    """Attention and MLP, each normalised before and added after."""

    def __init__(self, config: LlamaConfig, weights: Weights, layer: int) -> None:
        prefix, width = f"model.layers.{layer}", config.width
        self.attention_norm = RMSNorm(
            weights.take(f"{prefix}.input_layernorm.weight", (width,)), config.epsilon
        )
        self.attention = LlamaAttention(config, weights, layer)
        self.mlp_norm = RMSNorm(
            weights.take(f"{prefix}.post_attention_layernorm.weight", (width,)), config.epsilon
        )
        self.mlp = LlamaMLP(config, weights, layer)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Map x [tokens, width] to the same shape."""
        x = x + self.attention(self.attention_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))


class Llama:
    """Tokens to hidden states, and hidden states to logits."""

    def __init__(self, config: LlamaConfig, weights: Weights) -> None:
        table = (config.vocabulary_size, config.width)
        embedding = weights.take("model.embed_tokens.weight", table)
        self.embedding = Embedding(embedding)
        self.layers = [LlamaLayer(config, weights, layer) for layer in range(config.num_layers)]
        self.norm = RMSNorm(weights.take("model.norm.weight", (config.width,)), config.epsilon)
        self.head = Head(embedding if config.is_tied else weights.take("lm_head.weight", table))

    def forward(self, tokens: Tensor, step: StepContext, on_layer: Callable[[], None]) -> Tensor:
        """Map tokens [tokens] to hidden states [tokens, width]. `on_layer` is called before each layer."""
        x = self.embedding(tokens)
        for layer in self.layers:
            on_layer()
            x = layer(x, step)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Chosen rows of the hidden states, [rows, width], to float32 logits [rows, vocabulary]."""
        return self.head(self.norm(hidden))


def _merged_linear(
    weights: Weights, prefix: str, outputs: dict[str, int], inputs: int, *, has_bias: bool
) -> Linear:
    """Projections of one input as one product, in the order of `outputs`."""
    parts = [weights.take(f"{prefix}.{name}.weight", (size, inputs)) for name, size in outputs.items()]
    if not has_bias:
        return Linear(_join(parts))
    biases = [weights.take(f"{prefix}.{name}.bias", (size,)) for name, size in outputs.items()]
    return Linear(_join(parts), _join(biases))


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
