"""A shard's heads and rows, in the words of the kernels."""

from typing import NamedTuple

from millrace_fit.config import LlamaConfig
from millrace_fit.shard import Cut, Shard
from millrace_kernels.step import Heads, Shares


class AttentionPart(NamedTuple):
    """One worker's part of each layer's attention."""

    query: Cut
    """Rows of the query's projection, and columns of the output's."""
    kv: Cut
    """Rows of the key's projection, and of the value's."""
    heads: Heads


def cut_attention(config: LlamaConfig, shard: Shard) -> AttentionPart:
    """Return a shard's part of the attention. Raises ArchitectureError where heads can't be shared so."""
    mine, dim = shard.cut_heads(config.num_heads, config.num_kv_heads), config.head_dim
    return AttentionPart(mine.query.times(dim), mine.kv.times(dim), Heads(mine.query.size, mine.kv.size, dim))


def share_rows(shard: Shard, total: int) -> Shares | None:
    """Return how all workers share a table's rows; None for the only one.

    Raises ArchitectureError where a worker would have none.
    """
    if shard.count == 1:
        return None
    parts = [Shard(index, shard.count).cut(total, 1) for index in range(shard.count)]
    return Shares(shard.index, (0, *(part.end for part in parts)))
