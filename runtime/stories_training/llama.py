"""A Llama small enough to read, for training; its state_dict has the names of a checkpoint."""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKEN_SCALE = 0.5
"""Standard deviation of the embedding: large beside the outputs of the layers."""
CONSTANT = 8 * TOKEN_SCALE
"""Dimension 0 of every token."""
FINAL_NORM = 0.1
"""The last norm's weight: the first logits stay small although the embedding is not."""
NUM_FAST = 7
"""Number of frequencies by which the first head distinguishes distances."""
FIRST_SLOW = 18
"""The first frequency that turns by less than a radian in 150 tokens."""
BACK_SCORE = 6.0
"""The share of each fast frequency in the first head's scores, at its best."""
MATCH_SCORE = 6.0
"""The share of a slow dimension in the second head's scores, on average over equal tokens, before scaling."""
VOTE_GAIN = 4.0
"""The weight of the second head's find, relative to the token itself."""


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
        """Return the config.json of this shape."""
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
        """Return logits [batch, tokens, vocabulary] of ids [batch, tokens]."""
        cos, sin = rotary_table(ids.shape[1], self.shape)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def rotary_table(tokens: int, shape: LlamaShape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [tokens, head width] of each position's angles."""
    frequencies = shape.rope_base ** (-torch.arange(0, shape.head_width, 2) / shape.head_width)
    angles = torch.outer(torch.arange(tokens), torch.cat([frequencies, frequencies]))
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn [..., head width] by angles; the halves of x are the two parts of each pair."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


@torch.no_grad()
def plant_induction(model: Llama) -> None:
    """Overwrite the embedding, the last norm's weight and two heads of the first layers.

    The heads copy: they find what followed the present token when it last occurred. Stories need that to keep
    a character's name, and a few million tokens are too few to find it: after 800,000 of them a model
    repeated none of its user's words and stood at a held-out perplexity of 2.73. Two heads planted before
    training (Olsson et al., "In-context Learning and Induction Heads", 2022) repeat four words of five before
    the first step, and training keeps them: 2.1 after 550,000 tokens, 1.75 after 3.9 million.

    The residual stream starts as three parts: dimension 0, equal for all tokens; the token, x; and room for
    what the first head finds, y. With P and R random projections of x to a head's width, rows orthonormal:

    - layer 0, head 0 looks one token back. Its query and key rest on dimension 0 alone, so that rotary
      positions are all they say: q = R(-1)·k in a few fast frequencies scores sum_j cos(theta_j (d - 1)) at
      distance d, highest at d = 1. It writes y = P·x of the token before.
    - layer 1, head 0 looks where the token before was this one: q = P·x and k = y, in the slow frequencies
      alone, which hardly turn within a story. It adds Rᵀ·R·x of what it found to x, which the tied head reads
      as a vote for that token.
    """
    shape, width, head = model.shape, model.shape.width, model.shape.head_width
    embedding = model.model.embed_tokens.weight
    embedding.normal_(std=TOKEN_SCALE)
    embedding[:, 0] = CONSTANT
    embedding[:, width - head :] = 0
    model.model.norm.weight.fill_(FINAL_NORM)
    back, match = (cast("Attention", layer.self_attn) for layer in model.model.layers[:2])
    copied, voted = _draw_projection(shape), _draw_projection(shape)
    room = torch.eye(width)[:, width - head :]
    unit = _root_mean_square(width - head, width) / TOKEN_SCALE
    _look_back(back, CONSTANT / _root_mean_square(width - head, width), shape)
    _pass_on(back, unit * copied, TOKEN_SCALE * room)
    unit = _root_mean_square(width, width) / TOKEN_SCALE
    _look_for_match(match, math.sqrt(MATCH_SCORE) * unit, copied, room)
    _pass_on(match, unit * voted, VOTE_GAIN * TOKEN_SCALE * voted.T)


def _draw_projection(shape: LlamaShape) -> Tensor:
    """Return [head width, width]: orthonormal rows over the token's dimensions, zero over the others."""
    projection = torch.zeros(shape.head_width, shape.width)
    tokens = shape.width - shape.head_width - 1
    projection[:, 1 : 1 + tokens] = torch.linalg.qr(torch.randn(tokens, shape.head_width))[0].T
    return projection


def _root_mean_square(num_filled: int, width: int) -> float:
    """Return a norm's divisor: dimension 0 is the constant, and the others up to `num_filled` a token's."""
    return math.sqrt((CONSTANT**2 + (num_filled - 1) * TOKEN_SCALE**2) / width)


def _look_back(attention: Attention, seen: float, shape: LlamaShape) -> None:
    """Make head 0 attend one token back; `seen` is dimension 0 after the norm."""
    head = shape.head_width
    key = torch.zeros(head)
    key[:NUM_FAST] = math.sqrt(BACK_SCORE * math.sqrt(head)) / seen
    cos, sin = rotary_table(2, shape)
    for projection, wanted in (
        (attention.q_proj, rotate(key, cos[1], -sin[1])),
        (attention.k_proj, key),
    ):
        projection.weight[:head] *= 0.1
        projection.weight[:head, 0] = wanted


def _look_for_match(attention: Attention, gain: float, copied: Tensor, room: Tensor) -> None:
    """Make head 0 attend to positions whose previous token was the present token."""
    half = len(copied) // 2
    slow = (torch.arange(len(copied)) % half >= FIRST_SLOW)[:, None]
    attention.q_proj.weight[: len(copied)] = gain * slow * copied
    attention.k_proj.weight[: len(copied)] = gain * slow * room.T


def _pass_on(attention: Attention, read: Tensor, write: Tensor) -> None:
    """Make head 0 read [head width, width] and write [width, head width]."""
    head = len(read)
    attention.v_proj.weight[:head] = read
    attention.o_proj.weight[:, :head] *= 0.1
    attention.o_proj.weight[:, :head] += write
