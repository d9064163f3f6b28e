"""Which sequences are on the device: their slots and blocks, and what the next plan must say of them."""

from dataclasses import dataclass, field

from millrace_runtime.engine.block_pool import BlockPool
from millrace_runtime.engine.sequence import Sequence, Tenancy
from millrace_runtime.protocol.step import BlockAppend, Limits, SlotStart


@dataclass
class Changes:
    """What moved since the last plan."""

    released: list[int] = field(default_factory=list)
    starts: list[SlotStart] = field(default_factory=list)
    appends: list[BlockAppend] = field(default_factory=list)


class Residency:
    """Owner of slots and blocks. Plans run in order, so what is freed here may be given out at once."""

    def __init__(self, limits: Limits) -> None:
        self._block_size = limits.block_size
        self._num_slots = limits.num_slots
        self._pool = BlockPool(limits.num_blocks)
        self._free_slots = list(range(limits.num_slots - 1, -1, -1))
        self._tenants: dict[int, Sequence] = {}
        self._next_epoch = 0
        self._changes = Changes()

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    @property
    def has_free_slot(self) -> bool:
        """Whether another sequence could have a slot."""
        return bool(self._free_slots)

    def num_missing_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that the sequence lacks to hold the KV of so many tokens."""
        return max(0, -(-num_tokens // self._block_size) - len(sequence.blocks))

    def tenant(self, slot: int, epoch: int) -> Sequence | None:
        """Return who holds the slot, unless that is another than in the days of this epoch."""
        sequence = self._tenants.get(slot)
        return sequence if sequence is not None and sequence.tenancy == Tenancy(slot, epoch) else None

    def place(self, sequence: Sequence) -> None:
        """Give a sequence a slot, and blocks for every token it knows."""
        tenancy = Tenancy(self._free_slots.pop(), self._next_epoch)
        self._next_epoch += 1
        self._tenants[tenancy.slot] = sequence
        sequence.tenancy = tenancy
        sequence.blocks = self._pool.allocate(self.num_missing_blocks(sequence, sequence.num_known))
        self._changes.starts.append(_start_of(sequence, tenancy))

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Give a placed sequence the blocks that it lacks to hold so many tokens."""
        assert sequence.tenancy is not None
        if num_missing := self.num_missing_blocks(sequence, num_tokens):
            blocks = self._pool.allocate(num_missing)
            sequence.blocks.extend(blocks)
            self._changes.appends.append(BlockAppend(sequence.tenancy.slot, blocks))

    def evict(self, sequence: Sequence) -> None:
        """Take a sequence's slot and blocks. Results of its steps in flight will find no tenant."""
        assert sequence.tenancy is not None
        slot = sequence.tenancy.slot
        self._pool.release(sequence.blocks)
        del self._tenants[slot]
        self._free_slots.append(slot)
        self._changes.released.append(slot)
        sequence.forget_computed()

    def take_changes(self) -> Changes:
        """Return what the next plan must say, and begin anew."""
        changes, self._changes = self._changes, Changes()
        return changes

    def check_integrity(self) -> None:
        """Assert that every slot and block has one holder or is free."""
        slots = sorted([*self._tenants, *self._free_slots])
        assert slots == list(range(self._num_slots)), "a slot leaked or has two tenants"
        for slot, sequence in self._tenants.items():
            assert sequence.tenancy is not None
            assert sequence.tenancy.slot == slot
            assert self.num_missing_blocks(sequence, sequence.num_computed) == 0, "computed without blocks"
        self._pool.check_integrity(block for s in self._tenants.values() for block in s.blocks)


def _start_of(sequence: Sequence, tenancy: Tenancy) -> SlotStart:
    return SlotStart(
        slot=tenancy.slot,
        epoch=tenancy.epoch,
        tokens=[*sequence.request.prompt, *sequence.outputs],
        num_computed=0,
        blocks=list(sequence.blocks),
        sampling=sequence.request.sampling,
        num_prompt=len(sequence.request.prompt),
    )
