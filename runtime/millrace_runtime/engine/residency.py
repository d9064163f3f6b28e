"""Which sequences are on the device: their slots and blocks, and the changes for the next plan."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace_runtime.engine.sequence import BlockTable, Sequence, Tenancy
from millrace_runtime.protocol.step import BlockAppend, KvGroup, Limits, SlotStart


class BlockPool:
    """Allocates and releases blocks, numbered from 0 to num_blocks - 1. Each has at most one holder."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: allocation takes the blocks freed last, so a small load stays in few blocks.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_held = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks without a holder."""
        return len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Return `num_blocks` free blocks. The caller makes sure that there are enough."""
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


@dataclass
class Changes:
    """The changes since the last plan."""

    released: list[int] = field(default_factory=list)
    starts: list[SlotStart] = field(default_factory=list)
    appends: list[BlockAppend] = field(default_factory=list)

    def release(self, slot: int) -> None:
        """Add a released slot, or withdraw its start if no plan has started it yet."""
        is_unplanned = any(start.slot == slot for start in self.starts)
        self.starts = [start for start in self.starts if start.slot != slot]
        self.appends = [append for append in self.appends if append.slot != slot]
        if not is_unplanned:
            self.released.append(slot)


class _Group:
    """A KV group and its blocks."""

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

    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        """Return how many more blocks a table needs to hold `num_tokens`."""
        return max(0, -(-num_tokens // self._block_size) - table.end)

    def max_reach(self, table: BlockTable) -> int:
        """Return how many tokens a table could hold with every free block."""
        return (table.end + self.pool.num_free) * self._block_size

    def drop_unseen(self, table: BlockTable, num_computed: int) -> None:
        """Release the blocks that no further token sees."""
        if self.window is None:
            return
        num_unseen = (num_computed + 1 - self.window) // self._block_size - table.num_dropped
        if num_unseen > 0:
            self.pool.release(table.blocks[:num_unseen])
            del table.blocks[:num_unseen]
            table.num_dropped += num_unseen


class Residency:
    """Owns slots and blocks. Plans run in order, so a freed block may be allocated again at once."""

    def __init__(self, limits: Limits) -> None:
        self._block_size = limits.block_size
        self._num_slots = limits.num_slots
        self._groups = [_Group(group, limits.block_size) for group in limits.groups]
        self._has_windows = any(group.window is not None for group in limits.groups)
        self._free_slots = list(range(limits.num_slots - 1, -1, -1))
        self._tenants: dict[int, Sequence] = {}
        self._next_epoch = 0
        self._changes = Changes()
        bounds = [bound for group in self._groups if (bound := group.max_length) is not None]
        self.max_length = min([limits.max_model_length, *bounds])
        """The most tokens of a sequence: the model's limit, or fewer if all blocks hold fewer."""

    @property
    def fullest_pool(self) -> BlockPool:
        """The pool of the group with the smallest free share."""
        return min((g.pool for g in self._groups), key=lambda pool: pool.num_free / pool.num_blocks)

    def has_room_for(self, sequence: Sequence, others: Iterable[Sequence], enough: int | None = None) -> bool:
        """Whether a sequence can be placed and leaves enough blocks in each group.

        Enough are `enough` blocks, or the blocks that `others` may still need, if those are fewer.
        """
        return bool(self._free_slots) and all(
            self._can_spare(number, group.num_live_blocks(sequence.num_known), others, enough)
            for number, group in enumerate(self._groups)
        )

    def can_extend(self, sequences: list[Sequence]) -> bool:
        """Whether the free blocks suffice for every known token of all these sequences together."""
        return not sequences or all(
            sum(group.num_missing(s.tables[number], s.num_known) for s in sequences) <= group.pool.num_free
            for number, group in enumerate(self._groups)
        )

    def tenant(self, slot: int, epoch: int) -> Sequence | None:
        """Return the sequence given `slot` in `epoch`, or None if it has left."""
        sequence = self._tenants.get(slot)
        return sequence if sequence is not None and sequence.tenancy == (slot, epoch) else None

    def place(self, sequence: Sequence) -> None:
        """Give a sequence a slot, and blocks for the known tokens that further tokens see."""
        tenancy = Tenancy(self._free_slots.pop(), self._next_epoch)
        self._next_epoch += 1
        self._tenants[tenancy.slot] = sequence
        sequence.tenancy = tenancy
        sequence.tables = [
            BlockTable(group.pool.allocate(group.num_live_blocks(sequence.num_known)))
            for group in self._groups
        ]
        self._measure_room(sequence)
        self._changes.starts.append(_start_of(sequence, tenancy))

    def extend(self, sequence: Sequence, num_tokens: int) -> int:
        """Extend a placed sequence's blocks towards `num_tokens`. Return how many tokens fit."""
        if num_tokens <= sequence.room:
            return num_tokens
        assert sequence.tenancy is not None
        tables = list(zip(self._groups, sequence.tables, strict=True))
        reached = min([num_tokens, *(group.max_reach(table) for group, table in tables)])
        for number, (group, table) in enumerate(tables):
            if num_missing := group.num_missing(table, reached):
                blocks = group.pool.allocate(num_missing)
                table.blocks.extend(blocks)
                self._changes.appends.append(BlockAppend(sequence.tenancy.slot, number, blocks))
        self._measure_room(sequence)
        return reached

    def drop_unseen(self) -> None:
        """Release the blocks that the windows have passed.

        Only tokens that submitted steps computed count: no block changes its holder in a step that reads it.
        """
        if not self._has_windows:
            return
        for sequence in self._tenants.values():
            for group, table in zip(self._groups, sequence.tables, strict=True):
                group.drop_unseen(table, sequence.num_computed)

    def evict(self, sequence: Sequence) -> None:
        """Release a sequence's slot and blocks. Results of its steps in flight will find no tenant."""
        assert sequence.tenancy is not None
        slot = sequence.tenancy.slot
        for group, table in zip(self._groups, sequence.tables, strict=True):
            group.pool.release(table.blocks)
        del self._tenants[slot]
        self._free_slots.append(slot)
        self._changes.release(slot)
        sequence.forget_computed()

    @property
    def has_releases(self) -> bool:
        """Whether the next plan has slots to release."""
        return bool(self._changes.released)

    def pop_changes(self) -> Changes:
        """Return the changes since the last call, for the next plan."""
        changes, self._changes = self._changes, Changes()
        return changes

    def check_integrity(self) -> None:
        """Assert that every slot and block has one holder or is free."""
        slots = sorted([*self._tenants, *self._free_slots])
        assert slots == list(range(self._num_slots)), "a slot leaked or has two tenants"
        for slot, sequence in self._tenants.items():
            assert sequence.tenancy is not None
            assert sequence.tenancy.slot == slot
            assert sequence.num_computed <= sequence.room, "computed without blocks"
        for number, group in enumerate(self._groups):
            group.pool.check_integrity(b for s in self._tenants.values() for b in s.tables[number].blocks)

    def _can_spare(
        self, number: int, num_blocks: int, others: Iterable[Sequence], enough: int | None
    ) -> bool:
        """Whether a group can spare `num_blocks`. The sum of the growth is computed only if it decides."""
        num_left = self._groups[number].pool.num_free - num_blocks
        if num_left < 0:
            return False
        has_enough = enough is not None and num_left >= enough
        return has_enough or self._num_growth(number, others) <= num_left

    def _num_growth(self, number: int, sequences: Iterable[Sequence]) -> int:
        """Return how many more blocks of a group these sequences may still need."""
        group = self._groups[number]
        needs = (group.num_live_blocks(s.max_length) - len(s.tables[number].blocks) for s in sequences)
        return sum(max(0, need) for need in needs)

    def _measure_room(self, sequence: Sequence) -> None:
        sequence.room = min(table.end for table in sequence.tables) * self._block_size


def _start_of(sequence: Sequence, tenancy: Tenancy) -> SlotStart:
    return SlotStart(
        slot=tenancy.slot,
        epoch=tenancy.epoch,
        tokens=sequence.pack_tokens(),
        num_computed=0,
        blocks=[list(table.blocks) for table in sequence.tables],
        sampling=sequence.new.sampling,
        num_prompt=sequence.num_prompt,
        num_scored=sequence.num_scored,
    )
