"""The KV cache's size: what it is to hold, and what fits."""

from dataclasses import dataclass
from typing import Final

from millrace_fit.budget import Budget
from millrace_fit.errors import NoRoomError

BLOCK_SIZE: Final = 16
"""Tokens in a block, as `paged_attention/cache.h` has them."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The cache's size, in blocks, and the longest sequence it is to hold."""

    num_blocks: int
    max_model_length: int
    num_bytes: int
    source: str
    """What bounds its memory, in words for the log."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences together."""
        return self.num_blocks * BLOCK_SIZE

    def describe(self) -> str:
        """Return a line for the log."""
        return (
            f"a KV cache of {self.num_blocks} blocks, {self.num_bytes} bytes, within {self.source}; "
            f"sequences of up to {self.max_model_length} tokens"
        )


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What the cache is to hold."""

    block_bytes: int
    """Of one block over all layers."""
    max_sequences: int
    longest: int
    """Tokens of the longest sequence."""
    is_firm: bool
    """Whether a sequence of that length must fit. If not, sequences are as long as the memory allows."""


def block_numbers(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Return how many numbers a block has over so many layers: keys and values of each of its tokens."""
    return num_layers * 2 * num_kv_heads * head_dim * BLOCK_SIZE


def plan_cache(demand: CacheDemand, budget: Budget) -> CacheShape:
    """Return a cache that fits into the budget, and is no larger than all sequences together can fill.

    There is no prefix cache, so a block that no sequence holds is of no use. Raises NoRoomError.
    """
    num_blocks = budget.num_bytes // demand.block_bytes
    room, needed = num_blocks * BLOCK_SIZE, demand.longest if demand.is_firm else BLOCK_SIZE
    if room < needed:
        raise NoRoomError(
            f"a KV cache of {budget.num_bytes} bytes ({budget.source}) holds {room} tokens, fewer than one "
            f"sequence of {needed}: lower --max-model-length or give the cache more memory"
        )
    length = min(demand.longest, room)
    num_blocks = min(num_blocks, demand.max_sequences * count_blocks(length))
    return CacheShape(num_blocks, length, num_blocks * demand.block_bytes, budget.source)


def count_blocks(length: int) -> int:
    """Return how many blocks a sequence of so many tokens takes."""
    return -(-length // BLOCK_SIZE)
