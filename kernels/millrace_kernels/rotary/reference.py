"""Rotary position embedding in plain torch: the definition, and the CPU path."""

import torch
from torch import Tensor


def rotary_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [num_tokens, heads, head_dim] by the angles of cos and sin, float32 [num_tokens, head_dim / 2].

    Returns a new contiguous tensor of x's shape and type.
    """
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
