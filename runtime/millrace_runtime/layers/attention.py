"""Attention over the paged KV cache, and what a step tells it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.select import Attend, select_kernels


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all layers of one step share."""

    attend: Attend
    """The step's attention, planned over its rows' block tables."""
    cache_slots: Tensor
    """int64 [real tokens]: block * block_size + offset where each token's KV goes."""
    cos: Tensor
    sin: Tensor
    """float32 [tokens, head_dim / 2], at each token's position."""
    kv_caches: list[Tensor]
    """A layer's [blocks, 2, kv_heads, block_size, head_dim], by layer."""


class Attention:
    """Rotates queries and keys, stores keys and values, attends: a layer's part without weights."""

    def __init__(
        self, layer: int, num_heads: int, num_kv_heads: int, head_dim: int, device: torch.device
    ) -> None:
        self._layer = layer
        self._heads, self._kv_heads, self._head_dim = num_heads, num_kv_heads, head_dim
        self._scale = head_dim**-0.5
        self._kernels = select_kernels(device)

    def __call__(self, qkv: Tensor, step: StepContext) -> Tensor:
        """Map qkv [tokens, (heads + 2 kv_heads) * head_dim] to [tokens, heads * head_dim]."""
        packed = qkv.view(qkv.shape[0], -1, self._head_dim)
        num_rotated = self._heads + self._kv_heads
        rotated = self._kernels.rotary(packed[:, :num_rotated], step.cos, step.sin)
        cache = step.kv_caches[self._layer]
        self._kernels.kv_write(rotated[:, self._heads :], packed[:, num_rotated:], cache, step.cache_slots)
        return step.attend(rotated[:, : self._heads], cache, self._scale).flatten(1)
