"""Sequences' places on the device: token ids and block tables there, lengths and epochs here."""

from dataclasses import dataclass

import torch

from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.kv_cache import BLOCK_SIZE
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import BlockAppend, Row, SlotStart, StepPlan


@dataclass(slots=True)
class Slot:
    """One tenant. What has been submitted counts as done: plans run in order."""

    epoch: int
    sampling: Sampling
    num_prompt: int
    num_known: int
    """Tokens in the table: given ones and drawn ones."""
    num_computed: int
    """Tokens whose KV is written."""
    num_blocks: int


class SlotTable:
    """Owns what each slot holds."""

    def __init__(self, num_slots: int, max_length: int, num_blocks: int, device: torch.device) -> None:
        width = -(-max_length // BLOCK_SIZE)
        self.tokens = torch.zeros((num_slots, max_length + 1), dtype=torch.int64, device=device)
        """[slots, max_length + 1]: the token drawn after the last position has a place too."""
        self.blocks = torch.zeros((num_slots, width), dtype=torch.int64, device=device)
        self._num_cache_blocks = num_blocks
        self._slots: list[Slot | None] = [None] * num_slots

    def __getitem__(self, slot: int) -> Slot:
        """Return the tenant. Raises PlanError for an empty slot."""
        tenant = self._slots[slot] if 0 <= slot < len(self._slots) else None
        if tenant is None:
            raise PlanError(f"slot {slot} holds no sequence")
        return tenant

    def apply(self, plan: StepPlan) -> None:
        """Release, start and append, in this order. Raises PlanError."""
        for slot in plan.released:
            self[slot]
            self._slots[slot] = None
        for start in plan.starts:
            self._start(start)
        for append in plan.appends:
            self._append(append)

    def advance(self, row: Row) -> tuple[int, int]:
        """Count a row as computed; return its first position and its end. Raises PlanError."""
        slot = self[row.slot]
        begin, end = slot.num_computed, slot.num_computed + row.num_tokens
        if row.num_tokens < 1 or end > slot.num_known or end > slot.num_blocks * BLOCK_SIZE:
            raise PlanError(
                f"slot {row.slot} can't compute tokens {begin} to {end}: it knows {slot.num_known} "
                f"and has {slot.num_blocks} blocks"
            )
        if row.emit:
            if end != slot.num_known or end >= self.tokens.shape[1]:
                raise PlanError(f"slot {row.slot} can't emit after token {end} of {slot.num_known}")
            slot.num_known += 1
        slot.num_computed = end
        return begin, end

    def _start(self, start: SlotStart) -> None:
        count = len(start.tokens)
        if not 0 <= start.slot < len(self._slots) or self._slots[start.slot] is not None:
            raise PlanError(f"slot {start.slot} is not free")
        if not 0 <= start.num_computed < count < self.tokens.shape[1]:
            raise PlanError(f"slot {start.slot} starts with {start.num_computed} of {count} tokens computed")
        self.tokens[start.slot, :count] = torch.tensor(start.tokens)
        self._slots[start.slot] = Slot(
            start.epoch, start.sampling, start.num_prompt, count, start.num_computed, 0
        )
        self._append(BlockAppend(start.slot, start.blocks))

    def _append(self, append: BlockAppend) -> None:
        slot = self[append.slot]
        begin, end = slot.num_blocks, slot.num_blocks + len(append.blocks)
        if end > self.blocks.shape[1] or not all(0 <= b < self._num_cache_blocks for b in append.blocks):
            raise PlanError(f"slot {append.slot} can't take the blocks {append.blocks} after {begin}")
        if append.blocks:
            self.blocks[append.slot, begin:end] = torch.tensor(append.blocks)
        slot.num_blocks = end
