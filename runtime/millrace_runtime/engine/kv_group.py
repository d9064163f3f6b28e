"""A KV group's blocks, and how many of them a sequence needs."""

from collections.abc import Sequence

from millrace_runtime.engine.block_pool import BlockPool
from millrace_runtime.engine.sequence import BlockTable
from millrace_runtime.protocol.step import KvGroup


class GroupBlocks:
    """The pool of one KV group."""

    def __init__(self, group: KvGroup, block_size: int) -> None:
        self.pool = BlockPool(group.num_blocks)
        self.window = group.window
        self._block_size = block_size

    @property
    def max_length(self) -> int | None:
        """The most tokens of a sequence that has all blocks for itself; None without a limit."""
        is_endless = self.num_live_blocks(self.pool.num_blocks * self._block_size + 1) <= self.pool.num_blocks
        return None if is_endless else self.pool.num_blocks * self._block_size

    def num_live_blocks(self, num_tokens: int) -> int:
        """Return the blocks that a sequence of `num_tokens` needs at once, if it computes one at a time.

        A window of w tokens touches no more than ceil((w - 1) / block size) + 1 blocks.
        """
        num_blocks = -(-num_tokens // self._block_size)
        if self.window is None:
            return num_blocks
        return min(num_blocks, -(-(self.window - 1) // self._block_size) + 1)

    def num_unseen(self, num_computed: int) -> int:
        """Return how many blocks from position 0 on no token after `num_computed` tokens sees."""
        if self.window is None:
            return 0
        return max(0, (num_computed + 1 - self.window) // self._block_size)

    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        """Return how many more blocks a table needs to hold `num_tokens`."""
        return max(0, -(-num_tokens // self._block_size) - table.end)

    def max_reach(self, table: BlockTable) -> int:
        """Return how many tokens a table could hold with every free block."""
        return (table.end + self.pool.num_free) * self._block_size

    def find_prefix(self, keys: Sequence[bytes], most: int) -> int:
        """Return the longest prefix, of at most so many blocks, of which this group has all that is seen.

        `keys` are those of a sequence's blocks. With a window the last blocks suffice.
        """
        if self.window is None:
            return next((number for number in range(most) if keys[number] not in self.pool), most)
        first = most
        while most and first > self.num_unseen(most * self._block_size):
            first -= 1
            if keys[first] not in self.pool:
                most = first
        return most

    def num_new(self, keys: Sequence[bytes], num_cached: int, num_tokens: int) -> int:
        """Return how many blocks without a reader it takes to place a sequence of `num_tokens`.

        Its first `num_cached` blocks are a prefix that this group has.
        """
        first = self.num_unseen(num_cached * self._block_size)
        shared = [key for key in keys[first:num_cached] if self.pool.is_held(key)]
        return self._count(first, num_cached, num_tokens) - len(shared)

    def place(self, keys: Sequence[bytes], num_cached: int, num_tokens: int) -> BlockTable:
        """Return the table of a new sequence: the prefix, and blocks for further tokens to see."""
        first = self.num_unseen(num_cached * self._block_size)
        shared = [self.pool.share(key) for key in keys[first:num_cached]]
        num_new = self._count(first, num_cached, num_tokens) - len(shared)
        return BlockTable([*shared, *self.pool.allocate(num_new)], first)

    def drop_unseen(self, table: BlockTable, keys: Sequence[bytes], num_computed: int) -> None:
        """Release the blocks that no token after `num_computed` submitted ones sees.

        Those with a key stay cached, even before their step is collected: a sequence that finds them is in a
        later plan.
        """
        if self.window is None:
            return
        num_unseen = self.num_unseen(num_computed) - table.num_dropped
        if num_unseen > 0:
            self.name(table, keys, table.num_dropped, min(table.num_dropped + num_unseen, len(keys)))
            self.pool.release(table.blocks[:num_unseen])
            del table.blocks[:num_unseen]
            table.num_dropped += num_unseen

    def name(self, table: BlockTable, keys: Sequence[bytes], begin: int, end: int) -> None:
        """Let the blocks from number `begin` to `end` of a table be found."""
        for number in range(max(begin, table.num_dropped), end):
            self.pool.name(table.blocks[number - table.num_dropped], keys[number])

    def _count(self, first: int, num_cached: int, num_tokens: int) -> int:
        """Return the blocks of a new sequence's table from number `first` on."""
        num_blocks = min(-(-num_tokens // self._block_size), first + self.num_live_blocks(num_tokens))
        return max(num_cached, num_blocks) - first
