"""The KV cache on every path, by layer.

`cache.h` has the same numbers, which loading a library compares, and the inner layout of a block on CPUs.
"""

import enum
from dataclasses import dataclass

from torch import Tensor

BLOCK_SIZE = 16
"""Tokens in a block."""
SLACK = 64
"""Numbers after a layer's last block: the CPU kernels read whole vectors, beyond the end of a narrow head."""


class KvFormat(enum.Enum):
    """The form of a cache's numbers. `README.md` has the maths of the rounded ones."""

    MODEL = "Model"
    """The model's own type, without scales."""
    INT8 = "Int8"
    """Integers from -127 to 127, with a scale for each token and KV head."""
    FP8 = "Fp8"
    """float8_e4m3, with such scales."""


@dataclass(frozen=True, slots=True)
class KvCache:
    """A layer's keys and values."""

    data: Tensor
    """[blocks, 2, kv_heads, BLOCK_SIZE, head_dim], and SLACK numbers of the same memory after it: keys, then
    values."""
    scales: Tensor | None = None
    """float32 [blocks, 2, kv_heads, BLOCK_SIZE]; None in the model's own type."""
    format: KvFormat = KvFormat.MODEL

    @property
    def num_kv_heads(self) -> int:
        """KV heads of a token."""
        return self.data.shape[2]

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.data.shape[3]

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.data.shape[4]
