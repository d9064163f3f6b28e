"""Paged attention in plain torch: the definition."""

import torch
from torch import Tensor


def paged_attention_reference(  # noqa: PLR0917
    query: Tensor,
    kv_cache: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    scale: float,
) -> Tensor:
    """Attend causally, each row to its own sequence.

    query [num_tokens, heads, head_dim]; kv_cache [blocks, 2, kv_heads, block_size, head_dim];
    query_starts [rows + 1], context_lengths [rows] (this step's tokens included), block_tables
    [rows, blocks of the longest]. Returns [num_tokens, heads, head_dim], zero for tokens of no row.
    """
    output = torch.zeros_like(query)
    starts = query_starts.tolist()
    for row, context in enumerate(context_lengths.tolist()):
        begin, end = starts[row], starts[row + 1]
        keys, values = _gather(kv_cache, block_tables[row], context)
        output[begin:end] = _attend(query[begin:end].float(), keys, values, scale).to(query.dtype)
    return output


def _gather(kv_cache: Tensor, table: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return a sequence's keys and values, each float32 [context, kv_heads, head_dim]."""
    block_size = kv_cache.shape[3]
    positions = torch.arange(context, device=kv_cache.device)
    blocks = table.long()[positions // block_size]
    pair = kv_cache[blocks, :, :, positions % block_size].float()
    return pair[:, 0], pair[:, 1]


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    num_queries, heads, _ = query.shape
    context, kv_heads, _ = keys.shape
    keys, values = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    last = torch.arange(context - num_queries, context, device=query.device)
    is_future = torch.arange(context, device=query.device)[None, :] > last[:, None]
    weights = scores.masked_fill(is_future, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
