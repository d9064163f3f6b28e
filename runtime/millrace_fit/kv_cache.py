"""The KV cache's size: what it is to hold, and what fits.

What of a memory is planned for the KV cache, and what is left for the rest.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace_fit.errors import NoRoomError

SHARE_OF_LIMIT: Final = 0.8
"""Of what a cgroup's limit leaves beside the text worker: the rest is for activations and HTTP."""
SHARE_OF_MACHINE: Final = 0.5
"""Of what a machine without a limit has free: others live there too."""
SHARE_OF_THE_REST: Final = 0.95
"""Of what a GPU has free beside the largest steps and recordings: later kernels need some too."""
BYTES_TO_RECORD: Final = 256 << 20
BYTES_OF_A_RECORDING: Final = 16 << 20
"""For recorded steps: what they share (cuBLAS's memory, one step's own, the largest one's logits), and each
one's launches. 21 sizes up to 256 rows of Llama 3 8B took 282 MiB of an H200: of these it makes 592."""

_TEXT_SHARE = 1 / 16
"""Most of a replica's memory is for the weights and the KV cache."""
_ENOUGH_FOR_TEXT = 512 * 1024**2
"""A tokenizer of 128k pieces takes 125 MB; the rest is enough for 0.7 MB of any text."""
_TEXT_SHARE_OF_LITTLE = 0.25
"""The most of a small memory, also where _ENOUGH_FOR_TEXT would be more."""
_MOST_FOR_TEXT = 4 * 1024**3
"""Enough for nearly 8 MiB of any text, the longest body. The worker refuses a text that needs more."""


class Budget(NamedTuple):
    """Memory to plan with, and what bounds it, in words for the log."""

    num_bytes: int
    source: str


def plan_host(left_bytes: int, text_bytes: int, share: float, source: str) -> Budget:
    """Return a share of the host's memory that is left, beside so many bytes for the text worker."""
    beside = f" beside {text_bytes} for the text worker" if text_bytes else ""
    return Budget(int(max(0, left_bytes - text_bytes) * share), f"{share} of what {source}{beside}")


def plan_text_memory(usable_bytes: int) -> int:
    """Return the text worker's share of the bytes that the replica may use."""
    enough = min(_ENOUGH_FOR_TEXT, int(usable_bytes * _TEXT_SHARE_OF_LITTLE))
    return min(max(int(usable_bytes * _TEXT_SHARE), enough), _MOST_FOR_TEXT)


def bound_recordings(num_sizes: int) -> int:
    """Return the bytes of a GPU that recorded steps of so many sizes may take."""
    return BYTES_TO_RECORD + BYTES_OF_A_RECORDING * num_sizes if num_sizes else 0


def share_out(free: int, step: int, recordings: int = 0) -> Budget:
    """Return what of so many free bytes the KV cache may take beside the largest steps' and recordings'."""
    source = (
        f"{SHARE_OF_THE_REST} of what the GPU has free beside {step} bytes for the largest step and "
        f"{recordings} for recorded ones"
    )
    return Budget(int(max(0, free - step - recordings) * SHARE_OF_THE_REST), source)


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
