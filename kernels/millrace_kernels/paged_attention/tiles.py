"""How many keys and queries a Triton kernel has in a processor's shared memory at once."""

from typing import NamedTuple

import torch
import triton

MIN_DOT = 16
"""tl.dot wants at least 16 in each dimension."""
DECODE_KEY_BYTES = 8 << 10
PREFILL_KEY_BYTES = 16 << 10
PREFILL_QUERY_BYTES = 32 << 10
"""Of one tile. Prefill needs one of keys, one of values, and some for what the products pass on. Decode has
two of each, because it does little but read, and two programs on a processor. The smallest processors have
99 KiB, and a test compiles every choice to see that it fits."""
DECODE_STAGES, PREFILL_STAGES = 5, 2
"""Of the loops that read tiles: two for the blocks that the table names, and one for each tile ahead."""


class Tile(NamedTuple):
    """The sizes of a kernel's tiles. Nothing that changes from step to step enters, so its bits stay."""

    rows: int
    """Queries of a tile, each of a group's heads one."""
    keys: int
    head_dim: int
    """As the tile has it: a power of two."""
    warps: int
    stages: int


def choose_decode_tile(dtype: torch.dtype, head_dim: int, group: int) -> Tile:
    """Return the tile of rows with one query, of `group` heads that share a KV head."""
    width = _pad_dot(head_dim)
    keys = _fit(DECODE_KEY_BYTES, width * dtype.itemsize, 64)
    return Tile(_pad_dot(group), keys, width, 4, DECODE_STAGES)


def choose_prefill_tile(dtype: torch.dtype, head_dim: int, group: int) -> Tile:
    """Return the tile of rows with several queries, of `group` heads that share a KV head."""
    width = _pad_dot(head_dim)
    rows = max(_fit(PREFILL_QUERY_BYTES, width * dtype.itemsize, 128), _pad_dot(group))
    keys = _fit(PREFILL_KEY_BYTES, width * dtype.itemsize, 64)
    return Tile(rows, keys, width, 8 if rows >= 128 else 4, PREFILL_STAGES)


def _fit(num_bytes: int, row_bytes: int, at_most: int) -> int:
    return min(max(num_bytes // row_bytes, MIN_DOT), at_most)


def _pad_dot(size: int) -> int:
    return int(max(MIN_DOT, triton.next_power_of_2(size)))
