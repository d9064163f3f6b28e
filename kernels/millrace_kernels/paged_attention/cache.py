"""The KV cache on every path: a layer's [blocks, 2, kv_heads, BLOCK_SIZE, head_dim], and SLACK numbers more.

`cache.h` has the same numbers, which loading a library compares, and the inner layout of a block on CPUs.
"""

BLOCK_SIZE = 16
"""Tokens in a block."""
SLACK = 64
"""Numbers after a layer's last block: the CPU kernels read whole vectors, beyond the end of a narrow head."""
