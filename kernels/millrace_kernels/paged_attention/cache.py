"""The KV cache on every path: a layer's [blocks, 2, kv_heads, BLOCK_SIZE, head_dim], and SLACK numbers more.

`cache.h` has the same numbers, which are compared when a library is loaded, and a block's inner layout there.
"""

BLOCK_SIZE = 16
"""Tokens in a block."""
SLACK = 64
"""Numbers after a layer's last block: the CPU kernels read whole vectors, past a narrow head."""
