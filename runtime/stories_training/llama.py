"""A Llama small enough to read, for training; its state_dict has the names of a checkpoint."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a Llama; the embedding is tied to the head."""

    vocabulary_size: int = 4096
    width: int = 256
    hidden_width: int = 640
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_width: int = 64
    max_length: int = 2048
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5

    def to_config(self) -> dict[str, Any]:
        """The config.json of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.width,
            "intermediate_size": self.hidden_width,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_width,
            "max_position_embeddings": self.max_length,
            "rope_theta": self.rope_base,
            "rms_norm_eps": self.norm_epsilon,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }


class Attention(nn.Module):
    """Causal attention with rotary positions and shared key-value heads."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.num_heads * shape.head_width, shape.num_kv_heads * shape.head_width
        self.q_proj = nn.Linear(shape.width, queries, bias=False)
        self.k_proj = nn.Linear(shape.width, keys, bias=False)
        self.v_proj = nn.Linear(shape.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, tokens, width] to the same."""
        batch, tokens, _ = x.shape
        q, k, v = (
            projection(x).view(batch, tokens, -1, self.shape.head_width).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """SiLU-gated."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden_width, bias=False)
        self.down_proj = nn.Linear(shape.hidden_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and MLP, each on the normed residual stream."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, tokens, width] to the same."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, layers, norm."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary_size, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)


class Llama(nn.Module):
    """The whole model."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.apply(_initialise)
        for name, weight in self.named_parameters():  # as many additions to the residual stream
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * shape.num_layers) ** 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [batch, tokens, vocabulary] of ids [batch, tokens]."""
        cos, sin = rotary_table(ids.shape[1], self.shape)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def rotary_table(tokens: int, shape: LlamaShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines [tokens, head width] of each position's angles."""
    frequencies = shape.rope_base ** (-torch.arange(0, shape.head_width, 2) / shape.head_width)
    angles = torch.outer(torch.arange(tokens), torch.cat([frequencies, frequencies]))
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn [..., head width] by angles; the halves of x are the two parts of each pair."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
