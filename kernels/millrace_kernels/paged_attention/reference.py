"""Paged attention in plain torch: the definition."""

import torch
from torch import Tensor

from millrace_kernels.paged_attention.cache import KvCache


def paged_attention_reference(  # noqa: PLR0917
    query: Tensor,
    kv_cache: KvCache,
    query_starts: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attend causally, each row to its own sequence.

    query [num_tokens, heads, head_dim]; kv_cache a layer's;
    query_starts [rows + 1], context_lengths [rows] (this step's tokens included), block_tables
    [rows, blocks of the longest]. With a window a query sees its own key and the `window` - 1 before it, and
    the table's entries before the first key of a row's first query have no meaning.
    Returns [num_tokens, heads, head_dim], zero for tokens of no row.
    """
    output = torch.zeros_like(query)
    starts = query_starts.tolist()
    for row, context in enumerate(context_lengths.tolist()):
        begin, end = starts[row], starts[row + 1]
        before = context - (end - begin)
        reach = context + 1 if window is None else window
        own = torch.arange(before, context, device=query.device)[:, None]
        positions = torch.arange(max(0, before + 1 - reach), context, device=query.device)
        is_hidden = (positions > own) | (positions <= own - reach)
        keys, values = _gather(kv_cache, block_tables[row], positions)
        output[begin:end] = _attend(query[begin:end].float(), keys, values, scale, is_hidden).to(query.dtype)
    return output


def _gather(kv_cache: KvCache, table: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sequence's keys and values, each float32 [positions, kv_heads, head_dim]."""
    block_size = kv_cache.block_size
    blocks = table.long()[positions // block_size]
    where = blocks, slice(None), slice(None), positions % block_size
    pair = _widen(kv_cache.data, where)
    if kv_cache.scales is not None:
        pair = pair * kv_cache.scales[where].float()[..., None]
    return pair[:, 0], pair[:, 1]


def _widen(data: Tensor, where: tuple[Tensor | slice, ...]) -> Tensor:
    """Return entries in float32, by their bytes if torch cannot index their type."""
    is_byte = data.dtype.itemsize == 1
    return (data.view(torch.uint8)[where].view(data.dtype) if is_byte else data[where]).float()


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, is_hidden: Tensor) -> Tensor:
    heads, kv_heads = query.shape[1], keys.shape[1]
    keys, values = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    weights = scores.masked_fill(is_hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
