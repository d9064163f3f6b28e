"""Which sequences are on the device: their slots and blocks, and the changes for the next plan.

A sequence that is placed shares the cached blocks of its longest known prefix, and computes the rest. While a
running sequence computes the next block of another's prefix, that one waits (`awaits_prefix`): so a prompt's
choices and equal prompts are computed once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from millrace_runtime.engine.block_pool import BlockPool
from millrace_runtime.engine.kv_group import GroupBlocks
from millrace_runtime.engine.sequence import Sequence, Tenancy
from millrace_runtime.protocol.step import BlockAppend, Limits, SlotStart


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


class Claims(NamedTuple):
    """The slots and blocks that waiting sequences will need once they can share a prefix."""

    num_slots: int
    blocks: list[int]
    """By KV group."""

    @classmethod
    def none(cls, num_groups: int) -> "Claims":
        """Return the claims of nobody."""
        return cls(0, [0] * num_groups)


class Residency:
    """Owns slots and blocks. Plans run in order, so a freed block may be allocated again at once."""

    def __init__(self, limits: Limits) -> None:
        self._block_size = limits.block_size
        self._num_slots = limits.num_slots
        self._groups = [GroupBlocks(group, limits.block_size) for group in limits.groups]
        self._has_windows = any(group.window is not None for group in limits.groups)
        self._free_slots = list(range(limits.num_slots - 1, -1, -1))
        self._tenants: dict[int, Sequence] = {}
        self._next_epoch = 0
        self._changes = Changes()
        self._pending: dict[bytes, Sequence] = {}
        """By key: the running sequence that will compute this block of its prompt."""
        bounds = [bound for group in self._groups if (bound := group.max_length) is not None]
        self.max_length = min([limits.max_model_length, *bounds])
        """The most tokens of a sequence: the model's limit, or fewer if all blocks hold fewer."""

    @property
    def fullest_pool(self) -> BlockPool:
        """The pool of the group with the smallest free share."""
        return min((g.pool for g in self._groups), key=lambda pool: pool.num_free / pool.num_blocks)

    def has_room_for(
        self,
        sequence: Sequence,
        others: Iterable[Sequence],
        enough: int | None = None,
        claims: "Claims | None" = None,
    ) -> bool:
        """Whether a sequence can be placed and leaves enough blocks in each group.

        Enough are `enough` blocks, or the blocks that `others` may still need, if those are fewer. The
        blocks and slots of `claims` stay free, too.
        """
        claims = claims or Claims.none(len(self._groups))
        if len(self._free_slots) <= claims.num_slots:
            return False
        needs = self._count_live(sequence)
        if self._can_spare(map(add, needs, claims.blocks), others, enough):
            return True
        if not (num_cached := self._find_prefix(sequence)):
            return False
        needs = [group.num_new(sequence.keys, num_cached, sequence.num_known) for group in self._groups]
        return self._can_spare(map(add, needs, claims.blocks), others, enough)

    def claim(self, sequence: Sequence, claims: "Claims") -> "Claims":
        """Return the claims with a waiting sequence's slot and blocks."""
        return Claims(claims.num_slots + 1, [*map(add, self._count_live(sequence), claims.blocks)])

    def _count_live(self, sequence: Sequence) -> list[int]:
        return [group.num_live_blocks(sequence.num_known) for group in self._groups]

    def awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether a running sequence will compute the next block of this one's prefix."""
        if sequence.awaited is None:
            sequence.awaited = self._find_prefix(sequence)
        most = self._most_cached(sequence)
        while sequence.awaited < most and sequence.keys[sequence.awaited] not in self._pending:
            if not self._has_all(sequence.keys[sequence.awaited]):
                break
            sequence.awaited += 1  # it was computed since, and the ones before it are there
        return sequence.awaited < most and sequence.keys[sequence.awaited] in self._pending

    def can_extend(self, sequences: list[Sequence]) -> bool:
        """Whether the free blocks suffice for the next token of all these sequences together."""
        return not sequences or all(
            sum(group.num_missing(s.tables[number], s.num_computed + 1) for s in sequences)
            <= group.pool.num_free
            for number, group in enumerate(self._groups)
        )

    def tenant(self, slot: int, epoch: int) -> Sequence | None:
        """Return the sequence given `slot` in `epoch`, or None if it has left."""
        sequence = self._tenants.get(slot)
        return sequence if sequence is not None and sequence.tenancy == (slot, epoch) else None

    def place(self, sequence: Sequence) -> None:
        """Give a sequence a slot, the blocks of its known prefix, and blocks for further tokens to see."""
        tenancy = Tenancy(self._free_slots.pop(), self._next_epoch)
        self._next_epoch += 1
        self._tenants[tenancy.slot] = sequence
        sequence.tenancy = tenancy
        num_cached = self._find_prefix(sequence)
        sequence.awaited = None
        sequence.tables = [
            group.place(sequence.keys, num_cached, sequence.num_known) for group in self._groups
        ]
        sequence.num_computed = num_cached * self._block_size
        self._note_named(sequence, num_cached)
        for key in sequence.keys[num_cached:]:
            self._pending.setdefault(key, sequence)
        self._measure_room(sequence)
        self._changes.starts.append(_start_of(sequence, tenancy))

    def name_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Let the sequence's full blocks be found, of which a collected step has written so many tokens."""
        end = num_computed // self._block_size
        sequence.extend_keys(end, self._block_size)
        for group, table in zip(self._groups, sequence.tables, strict=True):
            group.name(table, sequence.keys, sequence.num_named, end)
        self._drop_pending(sequence, sequence.keys[sequence.num_named : end])
        self._note_named(sequence, end)

    def _note_named(self, sequence: Sequence, num_blocks: int) -> None:
        sequence.num_named, sequence.next_named = num_blocks, (num_blocks + 1) * self._block_size

    def distrust(self, sequence: Sequence) -> None:
        """Let nobody find a sequence's blocks, also those that it has dropped: a step of it had a fault."""
        for group in self._groups:
            group.pool.forget(sequence.keys)

    def forget_prefixes(self) -> None:
        """Free all cached blocks, as before a sleep, which loses their contents."""
        for group in self._groups:
            group.pool.forget_all()

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
                group.drop_unseen(table, sequence.keys, sequence.num_computed)

    def evict(self, sequence: Sequence) -> None:
        """Release a sequence's slot and blocks. Results of its steps in flight will find no tenant."""
        assert sequence.tenancy is not None
        slot = sequence.tenancy.slot
        for group, table in zip(self._groups, sequence.tables, strict=True):
            group.pool.release(reversed(table.blocks))  # the end of a text is needed less than its beginning
        self._drop_pending(sequence, sequence.keys[sequence.num_named :])
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

    def _can_spare(self, needs: Iterable[int], others: Iterable[Sequence], enough: int | None) -> bool:
        """Whether each group can spare the blocks that it needs."""
        return all(self._can_group_spare(number, need, others, enough) for number, need in enumerate(needs))

    def _can_group_spare(
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

    def _most_cached(self, sequence: Sequence) -> int:
        """Return the most blocks that a sequence may find: it computes one token at least."""
        if not sequence.reads_prefixes:
            return 0
        return min(len(sequence.keys), (sequence.num_known - 1) // self._block_size)

    def _has_all(self, key: bytes) -> bool:
        """Whether every group has the block with a key."""
        return all(key in group.pool for group in self._groups)

    def _find_prefix(self, sequence: Sequence) -> int:
        """Return how many blocks of a waiting sequence every group has, as far as it will see them."""
        most = found = self._most_cached(sequence)
        while True:
            for group in self._groups:
                found = group.find_prefix(sequence.keys, found)
            if found == most:
                return found
            most = found

    def _drop_pending(self, sequence: Sequence, keys: Iterable[bytes]) -> None:
        for key in keys:
            if self._pending.get(key) is sequence:
                del self._pending[key]

    def _measure_room(self, sequence: Sequence) -> None:
        sequence.room = min(table.end for table in sequence.tables) * self._block_size


def _start_of(sequence: Sequence, tenancy: Tenancy) -> SlotStart:
    return SlotStart(
        slot=tenancy.slot,
        epoch=tenancy.epoch,
        tokens=sequence.pack_tokens(),
        num_computed=sequence.num_computed,
        blocks=[[0] * table.num_dropped + table.blocks for table in sequence.tables],
        sampling=sequence.new.sampling,
        num_prompt=sequence.num_prompt,
        num_scored=sequence.num_scored,
    )
