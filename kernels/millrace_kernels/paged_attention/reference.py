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
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend causally, each row to its own sequence.

    query [num_tokens, heads, head_dim]; kv_cache a layer's;
    query_starts [rows + 1], context_lengths [rows] (this step's tokens included), block_tables
    [rows, blocks of the longest]. With a window a query sees its own key and the `window` - 1 before it, and
    the table's entries before the first key of a row's first query have no meaning. sinks float32 [heads]: a
    score of each head for a key without a value, which every query sees.
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
        scores = _score(query[begin:end].float(), keys, scale).masked_fill(is_hidden, float("-inf"))
        output[begin:end] = _mix(_weigh(scores, sinks), values).to(query.dtype)
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


def _score(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return [heads, queries, keys]."""
    keys = keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)
    return torch.einsum("qhd,khd->hqk", query, keys) * scale


def _weigh(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.float()[:, None, None].expand(*scores.shape[:2], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    values = values.repeat_interleave(weights.shape[0] // values.shape[1], dim=1)
    return torch.einsum("hqk,khd->qhd", weights, values)
