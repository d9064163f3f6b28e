"""Checks of a program's tables and caches, because the kernels check nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from millrace_kernels.native.errors import NativeError
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SCALE_TYPE, SLACK, KvCache, KvFormat
from millrace_kernels.step import Heads


def require_room(what: str, needed: int, given: int) -> None:
    """Raise NativeError if a step needs more than it has room for."""
    if needed > given:
        raise NativeError(f"a step of {needed} {what} in a program with room for {given}")


def check_tables(tokens: Tensor, blocks: Sequence[Tensor]) -> None:
    """Assert that the kernels can read a step's tables."""
    for table in (tokens, *blocks):
        assert table.dtype == torch.int64, f"{table.dtype} is not int64"
        assert table.stride(1) == 1, "a slot's numbers lie one after the other"
    assert len({table.stride(0) for table in blocks}) == 1, "the block tables of all KV groups are alike"


def check_cache(kv_cache: KvCache, heads: Heads, dtype: torch.dtype) -> None:
    """Assert that the kernels can use a layer's KV cache."""
    cache = kv_cache.data
    shape = (cache.shape[0], 2, heads.num_kv_heads, BLOCK_SIZE, heads.head_dim)
    assert cache.shape == shape, f"{tuple(cache.shape)} is not {shape}"
    assert kv_cache.format is not KvFormat.FP8, "no native kernel reads FP8"
    dtype = kv_cache.format.stored_type(dtype)
    assert cache.dtype == dtype, f"{cache.dtype} is not {dtype}"
    assert cache.is_contiguous(), "blocks lie one after the other"
    scales = kv_cache.scales
    assert (scales is None) == (kv_cache.format is KvFormat.MODEL), "rounded numbers have scales"
    if scales is not None:
        assert (scales.dtype, scales.shape) == (SCALE_TYPE, shape[:-1]), "a scale for each token and head"
        assert scales.is_contiguous(), "scales lie one after the other"
    room = cache.untyped_storage().nbytes() // dtype.itemsize - cache.storage_offset() - cache.numel()
    assert room >= SLACK, f"{room} numbers after the last block, not {SLACK}"
