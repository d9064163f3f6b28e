"""Starts a model with a head that copies: what stood behind this token when it last occurred?

Stories need it to keep a character's name, and a few million tokens are too few to find it: after 800,000
of them a model repeated none of its user's words and stood at a held-out perplexity of 2.73. Two heads
planted before training (Olsson et al., "In-context Learning and Induction Heads", 2022) repeat four words
of five before the first step, and training keeps them: 2.1 after 550,000 tokens, 1.75 after 3.9 million.

The residual stream starts as three parts: dimension 0, equal for all tokens; the token, x; and room for
what the first head finds, y. With P and R random projections of x to a head's width, rows orthonormal:

- layer 0, head 0 looks one token back. Its query and key rest on dimension 0 alone, so that rotary
  positions are all they say: q = R(-1)·k in a few fast frequencies scores sum_j cos(theta_j (d - 1)) at
  distance d, highest at d = 1. It writes y = P·x of the token before.
- layer 1, head 0 looks where the token before was this one: q = P·x and k = y, in the slow frequencies
  alone, which hardly turn within a story. It adds Rᵀ·R·x of what it found to x, which the tied head reads
  as a vote for that token.
"""

import math
from typing import cast

import torch
from torch import Tensor

from stories_training.llama import Attention, Llama, LlamaShape, rotary_table, rotate

TOKEN_SCALE = 0.5
"""Standard deviation of the embedding: large enough not to drown in what the layers add."""
CONSTANT = 8 * TOKEN_SCALE
"""Dimension 0 of every token."""
FINAL_NORM = 0.1
"""The last norm's weight: the first logits stay small although the embedding is not."""
NUM_FAST = 7
"""Frequencies by which the first head tells distances apart."""
FIRST_SLOW = 18
"""The first frequency that turns by less than a radian in 150 tokens."""
BACK_SCORE = 6.0
"""Of each fast frequency in the first head's scores, at its best."""
MATCH_SCORE = 6.0
"""Of a slow dimension in the second head's scores, on average over equal tokens, before the usual scaling."""
VOTE_GAIN = 4.0
"""Of what the second head found, against the token itself."""


@torch.no_grad()
def plant_induction(model: Llama) -> None:
    """Overwrite the embedding, the last norm's weight and two heads of the first layers."""
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
    """[head width, width] of orthonormal rows over the token's dimensions, zero over the others."""
    projection = torch.zeros(shape.head_width, shape.width)
    tokens = shape.width - shape.head_width - 1
    projection[:, 1 : 1 + tokens] = torch.linalg.qr(torch.randn(tokens, shape.head_width))[0].T
    return projection


def _root_mean_square(num_filled: int, width: int) -> float:
    """What a norm divides by where dimension 0 is the constant and others, up to num_filled, are tokens'."""
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
    """Make head 0 attend where the room holds what the token itself is."""
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
