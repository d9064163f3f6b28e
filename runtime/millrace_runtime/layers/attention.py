"""Attention over the paged KV cache."""

from torch import Tensor

from millrace_kernels.step import Angles, Heads, Step


class Attention:
    """Rotates queries and keys, stores keys and values, and attends. It has no weights."""

    def __init__(self, layer: int, heads: Heads, angles: Angles) -> None:
        self._layer, self._heads, self._angles = layer, heads, angles
        self._scale = heads.head_dim**-0.5

    def __call__(self, qkv: Tensor, step: Step) -> Tensor:
        """Map qkv [tokens, (heads + 2 kv_heads) * head_dim] to [tokens, heads * head_dim]."""
        query = step.rotary_kv_write(qkv, self._layer, self._heads, self._angles)
        return step.attention(query, self._layer, self._heads, self._scale)
