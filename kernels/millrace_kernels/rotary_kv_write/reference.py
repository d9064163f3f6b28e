"""Norms of heads, rotation and KV write in plain torch: the definition, and the torch path on CPUs."""

import torch
from torch import Tensor

from millrace_kernels.paged_attention.cache import KvCache, round_heads
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_kernels.step import HeadNorms, Heads


def rotary_kv_write_reference(  # noqa: PLR0917
    qkv: Tensor,
    heads: Heads,
    positions: Tensor,
    table: Tensor | None,
    kv_cache: KvCache,
    cache_slots: Tensor,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Normalise and rotate queries and keys, store keys and values. Returns the queries.

    qkv [tokens, (heads + 2 kv_heads) * head_dim]; positions int64 [tokens], not negative; table float32
    [2, length, head_dim / 2], cosines and sines, or None for no rotation; kv_cache a layer's, changed
    in place and rounded to its format; cache_slots int64 [at most tokens], block * block_size + offset,
    negative for padding. The queries are [tokens, heads * head_dim].
    """
    packed = qkv.view(qkv.shape[0], -1, heads.head_dim)
    values = heads.num_heads + heads.num_kv_heads
    query, key = packed[:, : heads.num_heads], packed[:, heads.num_heads : values]
    if norms is not None:
        query = rms_norm_reference(query, norms.query, norms.epsilon)
        key = rms_norm_reference(key, norms.key, norms.epsilon)
    if table is not None:
        cos, sin = table.index_select(1, positions)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    write_kv(key, packed[:, values:], kv_cache, cache_slots)
    return query.flatten(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [tokens, heads, head_dim] by the angles of cos and sin, float32 [tokens, head_dim / 2].

    Returns a new contiguous tensor of x's shape and type.
    """
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def write_kv(key: Tensor, value: Tensor, kv_cache: KvCache, cache_slots: Tensor) -> None:
    """Store tokens' keys and values [tokens, kv_heads, head_dim] in the cache, without padding."""
    written = (cache_slots >= 0).nonzero()[:, 0]
    slots, block_size = cache_slots[written], kv_cache.block_size
    blocks, offsets = slots // block_size, slots % block_size
    for part, given in enumerate((key[written], value[written])):
        if kv_cache.scales is None:
            kv_cache.data[blocks, part, :, offsets] = given.to(kv_cache.data.dtype)
            continue
        values, scales = round_heads(given, kv_cache.format)
        kv_cache.data.view(torch.int8)[blocks, part, :, offsets] = values.view(torch.int8)
        kv_cache.scales[blocks, part, :, offsets] = scales
