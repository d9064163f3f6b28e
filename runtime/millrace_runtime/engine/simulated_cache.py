"""The KV cache of the simulated executor: token ids in blocks, and what a sequence sees of them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace_runtime.protocol.step import KvGroup, Row, SlotStart

POISON = -1
"""The content of a block before it is written."""


@dataclass
class Slot:
    """A sequence on the device."""

    start: SlotStart
    tokens: list[int]
    tables: list[list[int]]
    num_computed: int

    @property
    def banned(self) -> set[int]:
        """The tokens that may not come next, whatever the step's mask says."""
        asked = self.start.sampling
        banned = {token for token, value in asked.bias.items() if value == -math.inf}
        if len(self.tokens) - self.start.num_prompt < asked.min_tokens:
            banned.update(asked.held_back)
        if asked.allowed is not None:
            banned.update(set(range(len(asked.allowed) * 8)) - unpack_mask(asked.allowed))
        return banned


class SimulatedCache:
    """Owner of the blocks of all groups. A wrong use of them fails an assertion."""

    def __init__(self, groups: Sequence[KvGroup], block_size: int) -> None:
        self._groups = groups
        self._block_size = block_size
        self._cells: list[list[list[int]]] = []
        """By group and block."""
        self.renew()

    @property
    def is_dropped(self) -> bool:
        """Whether it has no blocks, as in a sleep."""
        return not self._cells

    def drop(self) -> None:
        """Give up all blocks."""
        self._cells = []

    def renew(self) -> None:
        """Take new blocks, which nobody has written."""
        size = self._block_size
        self._cells = [[[POISON] * size for _ in range(group.num_blocks)] for group in self._groups]

    def write(self, slot: Slot, tokens: list[int]) -> None:
        """Write tokens behind the computed ones, in every group."""
        for position, token in enumerate(tokens, slot.num_computed):
            block, offset = divmod(position, self._block_size)
            for cells, table in zip(self._cells, slot.tables, strict=True):
                cells[table[block]][offset] = token

    def find_seen(self, slot: Slot, end: int) -> list[list[int]]:
        """Return the tokens that the last one before a position sees, by group."""
        windows = [group.window or end for group in self._groups]
        return [self._read(slot, n, max(0, end - window), end) for n, window in enumerate(windows)]

    def check_chunk(self, slot: Slot, num_tokens: int) -> None:
        """Assert that a chunk's tokens see only the sequence's own KV, even if the row draws nothing."""
        end = slot.num_computed + num_tokens
        for number, group in enumerate(self._groups):
            first = _first_seen(group, slot)
            seen = self._read(slot, number, first, end)
            assert seen == slot.tokens[first:end], "a row reads KV that is not its own"

    def check_writes(self, rows: Iterable[Row], slots: Mapping[int, Slot]) -> None:
        """Assert that no row writes to a block that another slot sees.

        A block that a window has passed may already belong to another slot.
        """
        for number, group in enumerate(self._groups):
            readers: Counter[int] = Counter()
            for slot in slots.values():
                readers.update(set(slot.tables[number][self._block_of(_first_seen(group, slot)) :]))
            for row in rows:
                slot = slots[row.slot]
                end = slot.num_computed + row.num_tokens + len(row.draft)
                first, last = self._block_of(slot.num_computed), self._block_of(end - 1)
                written = slot.tables[number][first : last + 1]
                assert all(readers[block] == 1 for block in written), "a row writes to a shared block"

    def _read(self, slot: Slot, group: int, first: int, end: int) -> list[int]:
        size, cells, table = self._block_size, self._cells[group], slot.tables[group]
        return [cells[table[at // size]][at % size] for at in range(first, end)]

    def _block_of(self, position: int) -> int:
        return position // self._block_size


def _first_seen(group: KvGroup, slot: Slot) -> int:
    """Return the first position that the slot's next token sees."""
    return 0 if group.window is None else max(0, slot.num_computed + 1 - group.window)


def unpack_mask(data: bytes) -> set[int]:
    """Return the tokens whose bits are set in a mask, the lowest bit first."""
    bits = int.from_bytes(data, "little")
    return {token for token in range(len(data) * 8) if bits >> token & 1}
