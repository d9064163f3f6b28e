"""The KV cache's size: its share of the memory, and the sequences that it holds."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace_fit.errors import NoRoomError
from millrace_fit.settings import MODEL_TYPE

SHARE_OF_LIMIT: Final = 0.8
"""Of the free memory within a cgroup's limit, beside the text worker. Activations and HTTP need the rest."""
SHARE_OF_MACHINE: Final = 0.5
"""Of the free memory of a machine without a limit, which other programs use too."""
SHARE_OF_THE_REST: Final = 0.95
"""Of a GPU's free memory beside the largest steps and the recordings. Later kernels need some too."""
BYTES_TO_RECORD: Final = 256 << 20
BYTES_OF_A_RECORDING: Final = 16 << 20
"""For recorded steps: their common memory (cuBLAS's, one step's own, the largest one's logits and marks) and
the launches of each. 21 sizes up to 256 rows of Llama 3 8B took 282 MiB of an H200 before all draws were part
of them. Marks and candidates are 142 MiB more, and these constants give 592."""

_TEXT_SHARE = 1 / 16
"""Most of a replica's memory is for the weights and the KV cache."""
SMALL_TEXT_BYTES: Final = 192 * 1024**2
"""For the text worker's process of small jobs: a tokenizer of 128k pieces takes some 120 MiB at its peak,
and a text of 128 KiB up to 64 MiB (`tests/runtime/replica/test_text_limits.py`)."""
_SMALL_TEXT_SHARE = 0.3
"""Its largest share of what the text worker has: a small pod's tokenizer is small, too."""
_ENOUGH_FOR_TEXT = 512 * 1024**2
"""A tokenizer of 128k pieces takes 125 MB in the process of large jobs. The rest is enough for 0.7 MB of any
text."""
_TEXT_SHARE_OF_LITTLE = 0.25
"""The largest share of a small memory, even if _ENOUGH_FOR_TEXT would be more."""
_MOST_FOR_TEXT = 4 * 1024**3
"""Enough for nearly 8 MiB of any text, the longest body. The worker refuses a text that needs more."""


class Budget(NamedTuple):
    """An amount of memory for a plan, and its origin in words for the log."""

    num_bytes: int
    source: str
    is_shared: bool = False
    """Whether other programs use this memory too: then prefixes have what sequences leave of their own."""


def plan_host(
    left_bytes: int, text_bytes: int, share: float, source: str, *, is_shared: bool = False
) -> Budget:
    """Return a share of the host's free memory, beside so many bytes for the text worker.

    `source` says where the memory is free, such as `of the machine`.
    """
    beside = f" beside {text_bytes} for the text worker" if text_bytes else ""
    num_bytes = int(max(0, left_bytes - text_bytes) * share)
    return Budget(num_bytes, f"{share} of the free memory {source}{beside}", is_shared)


def plan_text_memory(usable_bytes: int) -> int:
    """Return the text worker's share of the replica's memory, for both of its processes."""
    enough = min(_ENOUGH_FOR_TEXT, int(usable_bytes * _TEXT_SHARE_OF_LITTLE))
    large = min(max(int(usable_bytes * _TEXT_SHARE), enough), _MOST_FOR_TEXT)
    return large + min(SMALL_TEXT_BYTES, int(large * _SMALL_TEXT_SHARE / (1 - _SMALL_TEXT_SHARE)))


def plan_large_text(text_bytes: int) -> int:
    """Return the part of the text worker's share that its process of large jobs may take."""
    return text_bytes - min(SMALL_TEXT_BYTES, int(text_bytes * _SMALL_TEXT_SHARE))


def bound_recordings(num_sizes: int) -> int:
    """Return the bytes of a GPU for recorded steps of so many sizes."""
    return BYTES_TO_RECORD + BYTES_OF_A_RECORDING * num_sizes if num_sizes else 0


def share_out(free: int, step: int, recordings: int = 0) -> Budget:
    """Return the KV cache's part of `free` bytes, beside those of the largest steps and the recordings."""
    source = (
        f"{SHARE_OF_THE_REST} of the GPU's free memory beside {step} bytes for the largest step and "
        f"{recordings} for recorded ones"
    )
    return Budget(int(max(0, free - step - recordings) * SHARE_OF_THE_REST), source)


BLOCK_SIZE: Final = 16
"""Tokens in a block, as `paged_attention/cache.h` has them."""
SCALE_BYTES: Final = 2
"""Of each token's key of a head in 8 bits, and of its value."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share block tables."""

    block_bytes: int
    """Of one block over these layers."""
    window: int | None = None
    """A token sees itself and the `window` - 1 before it; None: all before it."""

    def count_blocks(self, num_sequences: int, length: int, max_batched_tokens: int) -> int:
        """Return the most blocks that so many sequences of a length hold at once.

        With a window a sequence holds what its next tokens see, and the tokens of a step.
        """
        whole = num_sequences * count_blocks(length)
        if self.window is None:
            return whole
        # A sequence's first and last block may hold a single one of these tokens.
        seen = num_sequences * (count_blocks(self.window) + 2)
        return min(whole, seen + count_blocks(max_batched_tokens))


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The cache's size in blocks, and the longest sequence that it must hold."""

    groups: tuple[CacheGroup, ...]
    num_blocks: tuple[int, ...]
    """By KV group."""
    max_model_length: int
    num_sequences: int
    """How many sequences of that length it holds at once."""
    source: str
    """The origin of its memory, in words for the log."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return count_bytes(self.groups, self.num_blocks)

    @property
    def num_tokens(self) -> int:
        """Tokens that it holds, of all sequences together, in the group that is full first."""
        full = [count for group, count in zip(self.groups, self.num_blocks, strict=True) if not group.window]
        return min(full or self.num_blocks) * BLOCK_SIZE

    def describe(self) -> str:
        """Return a line for the log."""
        parts = [
            f"{count} blocks" + ("" if group.window is None else f" for windows of {group.window} tokens")
            for group, count in zip(self.groups, self.num_blocks, strict=True)
        ]
        return (
            f"a KV cache of {' and '.join(parts)}, {self.num_bytes} bytes, within {self.source}; "
            f"sequences of up to {self.max_model_length} tokens"
        )


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """The sequences that the cache must hold."""

    groups: tuple[CacheGroup, ...]
    max_sequences: int
    max_batched_tokens: int
    longest: int
    """Tokens of the longest sequence."""
    is_firm: bool
    """Whether a sequence of this length must fit. If not, sequences are as long as the memory allows."""

    def count_blocks(self, num_sequences: int, length: int) -> tuple[int, ...]:
        """Return the most blocks that so many sequences of a length hold at once, by KV group."""
        tokens = self.max_batched_tokens
        return tuple(group.count_blocks(num_sequences, length, tokens) for group in self.groups)

    def count_sequences(self, length: int, num_blocks: Sequence[int]) -> int:
        """Return how many sequences of a length so many blocks hold at once."""

        def has_too_few(num_sequences: int) -> bool:
            needed = self.count_blocks(num_sequences, length)
            return any(need > count for need, count in zip(needed, num_blocks, strict=True))

        return bisect_left(range(1, self.max_sequences + 1), True, key=has_too_few)

    def find_longest(self, num_sequences: int, num_bytes: int) -> int:
        """Return the most tokens that so many sequences can each have in so many bytes; 0 for none."""

        def need(length: int) -> int:
            return count_bytes(self.groups, self.count_blocks(num_sequences, length))

        return bisect_right(range(1, self.longest + 1), num_bytes, key=need)


def block_numbers(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Return the count of numbers in a block over so many layers: keys and values of each token."""
    return num_layers * 2 * num_kv_heads * head_dim * BLOCK_SIZE


def block_bytes(num_layers: int, num_kv_heads: int, head_dim: int, item_bytes: int, form: str) -> int:
    """Return the bytes of a block over so many layers, in one of `settings.KV_CACHES`.

    `item_bytes` are those of a number in the model's own type.
    """
    numbers = block_numbers(num_layers, num_kv_heads, head_dim)
    if form == MODEL_TYPE:
        return numbers * item_bytes
    return numbers + SCALE_BYTES * block_numbers(num_layers, num_kv_heads, 1)


def plan_cache(demand: CacheDemand, budget: Budget) -> CacheShape:
    """Return the largest cache that fits into the budget: blocks without a sequence keep prefixes.

    Raises NoRoomError.
    """
    length = demand.find_longest(1, budget.num_bytes)
    needed = demand.longest if demand.is_firm else BLOCK_SIZE
    if length < min(needed, demand.longest):
        raise NoRoomError(
            f"a KV cache of {budget.num_bytes} bytes ({budget.source}) holds {length} tokens, fewer than one "
            f"sequence of {needed}: lower --max-model-length or give the cache more memory"
        )
    num_blocks = _share_blocks(demand, length, budget)
    num_sequences = demand.count_sequences(length, num_blocks)
    return CacheShape(demand.groups, num_blocks, length, num_sequences, budget.source)


def _share_blocks(demand: CacheDemand, length: int, budget: Budget) -> tuple[int, ...]:
    """Return each group's blocks: as many of each, but enough for one sequence, and not more than all fill.

    A sequence within the windows has as many blocks of each group. So groups with windows have enough first,
    and the others get the rest. With memory of our own for more than all sequences fill, each group has so
    many times more: prefixes stay in all groups for as long.
    """
    least, most = demand.count_blocks(1, length), demand.count_blocks(demand.max_sequences, length)
    if (filled := count_bytes(demand.groups, most)) <= budget.num_bytes:
        return most if budget.is_shared else tuple(count * budget.num_bytes // filled for count in most)

    def share(count: int) -> tuple[int, ...]:
        return tuple(min(max(low, count), high) for low, high in zip(least, most, strict=True))

    counts = range(1, max(most) + 1)
    return share(
        bisect_right(counts, budget.num_bytes, key=lambda count: count_bytes(demand.groups, share(count)))
    )


def count_bytes(groups: Sequence[CacheGroup], num_blocks: Sequence[int]) -> int:
    """Return the bytes of so many blocks of each group."""
    return sum(group.block_bytes * count for group, count in zip(groups, num_blocks, strict=True))


def count_blocks(length: int) -> int:
    """Return the blocks of a sequence of so many tokens."""
    return -(-length // BLOCK_SIZE)
