"""The numbers of keys and queries that a Triton kernel keeps in a processor's shared memory."""

from typing import NamedTuple

import torch
import triton

from millrace_kernels.paged_attention.split_kv import KEYS_UNIT

MIN_DOT = 16
"""tl.dot needs at least 16 in each dimension."""
DECODE_KEY_BYTES = 8 << 10
PREFILL_KEY_BYTES = 16 << 10
PREFILL_QUERY_BYTES = 32 << 10
"""Shared memory of one tile. Prefill needs a tile of keys, one of values, and some for intermediate products.
Decode, which mostly reads, has two of each, and two programs on a processor. The smallest processors have
99 KiB; a test compiles every choice to check that it fits."""
DECODE_STAGES, PREFILL_STAGES = 5, 3
"""Pipeline stages of the loops over tiles: two for the blocks of the table, and one for each tile ahead."""
WARPS_PER_PROCESSOR = 8
"""Warps of decode: some compute while others wait for memory. Not more than fit at the same time by their
registers: a program that starts late would compute its share alone.

On an H100, in bfloat16 with heads of 128, decode of 64 sequences of 1024 tokens takes 105 us with four
programs of 2 warps on a processor, 106 with four of 4, which just fit, 110 with three, and 112 with two.
Prefill of 4096 tokens takes 424 us with 4 warps and 3 stages, and 473 with 8 and 2; a chunk of 2048 after
14,336 takes 1249 and 1644 us. With tiles of 128 keys, for which only a Hopper's shared memory has room, it
takes 391 and 1333 us."""


class Tile(NamedTuple):
    """The sizes of a kernel's tiles. They are the same for every step, and so are the bits."""

    rows: int
    """Queries of a tile; each head of a group counts as one."""
    keys: int
    head_dim: int
    """Padded to a power of two."""
    warps: int
    stages: int


def choose_decode_tile(dtype: torch.dtype, head_dim: int, group: int) -> Tile:
    """Return the tile of rows with one query, of `group` heads that share a KV head."""
    width = _pad_dot(head_dim)
    rows, keys = _pad_dot(group), _fit(DECODE_KEY_BYTES, width * dtype.itemsize, KEYS_UNIT)
    # Two warps do not have the registers for more rows, or for float32.
    return Tile(rows, keys, width, 2 if rows == MIN_DOT and dtype.itemsize == 2 else 4, DECODE_STAGES)


def choose_prefill_tile(dtype: torch.dtype, head_dim: int, group: int) -> Tile:
    """Return the tile of rows with several queries, of `group` heads that share a KV head."""
    width = _pad_dot(head_dim)
    rows = max(_fit(PREFILL_QUERY_BYTES, width * dtype.itemsize, 128), _pad_dot(group))
    keys = _fit(PREFILL_KEY_BYTES, width * dtype.itemsize, KEYS_UNIT)
    return Tile(rows, keys, width, 4 if rows < 128 or dtype.itemsize == 2 else 8, PREFILL_STAGES)


def _fit(num_bytes: int, row_bytes: int, at_most: int) -> int:
    return min(max(num_bytes // row_bytes, MIN_DOT), at_most)


def _pad_dot(size: int) -> int:
    return int(max(MIN_DOT, triton.next_power_of_2(size)))
