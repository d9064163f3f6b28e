"""KV write in plain torch: the definition, and the CPU path."""

from torch import Tensor


def kv_write_reference(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """Store the first len(slots) tokens' keys and values; later tokens are padding.

    key and value [num_tokens, kv_heads, head_dim]; kv_cache [blocks, 2, kv_heads, block_size, head_dim],
    changed in place; slots int64 [at most num_tokens], block * block_size + offset, all different.
    """
    block_size = kv_cache.shape[3]
    blocks, offsets, count = slots // block_size, slots % block_size, slots.shape[0]
    kv_cache[blocks, 0, :, offsets] = key[:count].to(kv_cache.dtype)
    kv_cache[blocks, 1, :, offsets] = value[:count].to(kv_cache.dtype)
