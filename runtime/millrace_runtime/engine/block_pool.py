"""Which blocks of the KV cache are free."""

from collections.abc import Iterable


class BlockPool:
    """Allocates and releases blocks, numbered from 0 to num_blocks - 1. Each has one holder at most."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: the blocks freed last are handed out first, so a small load stays in few blocks.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_held = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Return `num_blocks` free blocks. The caller has made sure that there are so many."""
        assert 0 <= num_blocks <= len(self._free), f"{num_blocks} blocks wanted, {len(self._free)} free"
        blocks = [self._free.pop() for _ in range(num_blocks)]
        for block in blocks:
            self._is_held[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Make blocks free again."""
        for block in blocks:
            assert self._is_held[block], f"block {block} was freed twice"
            self._is_held[block] = 0
            self._free.append(block)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Assert that `held` are exactly the allocated blocks, each once, and that the others are free."""
        held_blocks = list(held)
        assert len(set(held_blocks)) == len(held_blocks), "a block has two holders"
        assert all(self._is_held[block] for block in held_blocks), "a free block is in use"
        assert sorted([*held_blocks, *self._free]) == list(range(self.num_blocks)), "a block leaked"
