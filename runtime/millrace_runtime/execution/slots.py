"""Sequences' slots: token ids and block tables on the device, lengths and epochs on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.sampling.columns import NO_MASK, NUM_PLACES, PARAMETERS, Draws
from millrace_kernels.sampling.state import SlotState
from millrace_kernels.transfer import TableWriter
from millrace_runtime.execution.applied_plan import AppliedPlan, Spans
from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.sampler import check_sampling, lay_out_bias, pack
from millrace_runtime.execution.scoring import Unscored, choose_scored, find_unscored
from millrace_runtime.execution.speculation.verification import lay_out_draws
from millrace_runtime.protocol.encoding import count_tokens
from millrace_runtime.protocol.sampling import MOST_BIASED
from millrace_runtime.protocol.step import (
    BlockAppend,
    Limits,
    Row,
    RowResult,
    SlotStart,
    StepPlan,
)


@dataclass(slots=True)
class Slot:
    """One sequence in its slot. Submitted work counts as done: plans run in order."""

    epoch: int
    num_logprobs: int | None
    unscored: Unscored | None
    num_prompt: int
    num_known: int
    """Tokens in the table, given or drawn."""
    num_computed: int
    """Tokens whose KV is written."""
    num_blocks: list[int]
    """Entries of its block tables, by KV group. In a group with a window the first ones may be stale."""
    num_guessed: int = 0
    """Tokens of a draft in flight. Until `settle` they count as known and computed."""


class SlotTable:
    """Owns the slots and their contents."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        num_slots, max_length = limits.num_slots, limits.max_model_length
        width = -(-max_length // BLOCK_SIZE)
        vocabulary, num_biases = limits.vocabulary_size, 2 * MOST_BIASED
        self.state = SlotState.allocate(num_slots, max_length + 1, vocabulary, num_biases, device)
        """The tables that draws read."""
        self.tokens = self.state.tokens
        """[slots, max_length + 1]: the token after the last position has a place too."""
        self.groups = limits.groups
        self.blocks = torch.zeros((len(self.groups), num_slots, width), dtype=torch.int64, device=device)
        """[KV groups, slots, width]. In a group with a window the front of a table is stale and not read."""
        self._length = max_length + 1
        self._token_writes = TableWriter(self.tokens)
        self._block_writes = TableWriter(self.blocks.flatten(0, 1))  # one, so that a plan has one copy
        self._bias_writes, self._mask_writes = TableWriter(self.state.biases), TableWriter(self.state.masks)
        self._limits = limits
        self._slots: list[Slot | None] = [None] * num_slots
        self._parameters = np.zeros(num_slots, dtype=PARAMETERS)
        """The sampling parameters of each slot's sequence, which are the same at each step."""
        self._bias_ranges = np.zeros((num_slots, 2, 2), dtype=np.int64)
        """The ranges of each slot's biases, as in `SlotBias`."""
        self._held_until = np.zeros(num_slots, dtype=np.int64)
        """The first position at which each slot's sequence may have the ids that are held back."""

    def __getitem__(self, slot: int) -> Slot:
        """Return the slot's sequence. Raises PlanError for an empty slot."""
        tenant = self._slots[slot] if 0 <= slot < len(self._slots) else None
        if tenant is None:
            raise PlanError(f"slot {slot} holds no sequence")
        return tenant

    @property
    def num_slots(self) -> int:
        """Slots, empty or not."""
        return len(self._slots)

    @property
    def most_draws(self) -> int:
        """The most draws of one step."""
        return max(self._limits.max_draws, len(self._slots))

    @property
    def is_empty(self) -> bool:
        """Whether no slot has a sequence."""
        return not any(self._slots)

    def apply(self, plan: StepPlan) -> AppliedPlan:
        """Release, start, append and count the rows as computed, in this order. Raises PlanError."""
        self._check_size(plan)
        for slot in plan.released:
            self[slot]
            self._slots[slot] = None
        for start in plan.starts:
            self._start(start)
        for append in plan.appends:
            self._append(append)
        for writes in (self._token_writes, self._block_writes, self._bias_writes, self._mask_writes):
            writes.flush()
        if len({row.slot for row in plan.rows}) != len(plan.rows):
            # Several threads write native rows: two rows of one sequence would race in the KV cache.
            raise PlanError(f"step {plan.step} has two rows of one slot")
        return self._advance(plan)

    def _check_size(self, plan: StepPlan) -> None:
        """Raise PlanError for a step without memory: the native kernels do not check."""
        num_guesses = sum([len(row.draft) for row in plan.rows if row.draft])
        num_tokens = sum([row.num_tokens for row in plan.rows]) + num_guesses
        if num_tokens > (most := self._limits.max_batched_tokens):
            raise PlanError(f"step {plan.step} has {num_tokens} tokens, more than the {most} that fit")
        num_draws = sum([row.emit for row in plan.rows]) + num_guesses if num_guesses else 0
        if num_draws > self.most_draws:
            raise PlanError(
                f"step {plan.step} has {num_draws} draws, more than the {self.most_draws} that fit"
            )

    def _advance(self, plan: StepPlan) -> AppliedPlan:
        """Count the rows' tokens as computed, and their draws as known."""
        rows, slots = plan.rows, [self[row.slot] for row in plan.rows]
        begins = [slot.num_computed for slot in slots]
        for row, slot in zip(rows, slots, strict=True):
            self._compute(row, slot)
        self._token_writes.flush()  # of drafts and forced tokens
        ends = [slot.num_computed for slot in slots]
        spans = Spans(*(np.array(one, dtype=np.int64) for one in ([row.slot for row in rows], begins, ends)))
        emits = [number for number, row in enumerate(rows) if row.emit]
        drafts = [rows[number].draft for number in emits]
        layout = lay_out_draws(emits, drafts, spans.ends - spans.begins, spans.ends) if any(drafts) else None
        drawing = np.array(emits, dtype=np.int64) if layout is None else layout.rows
        positions = spans.ends[drawing] if layout is None else layout.positions
        tenants = slots if len(drawing) == len(rows) else [slots[number] for number in drawing.tolist()]
        places = self._place_draws(spans.slots[drawing], positions, tenants)
        if is_masked := any(row.is_masked for row in rows):
            masked = [place for place, number in enumerate(drawing) if rows[number].is_masked]
            places[masked, 3] = range(len(masked))
        return AppliedPlan(
            step=plan.step,
            spans=spans,
            epochs=[slot.epoch for slot in slots],
            emits=emits,
            drafts=[] if layout is None else drafts,
            draws=Draws(self._parameters[places[:, 0]], places),
            places=None if layout is None else layout.places,
            scored=choose_scored(spans, [slot.unscored for slot in slots]),
            num_logprobs=[slot.num_logprobs for slot in tenants],
            is_masked=is_masked,
        )

    def _place_draws(
        self, numbers: NDArray[np.int64], positions: NDArray[np.int64], tenants: Sequence[Slot]
    ) -> NDArray[np.int64]:
        """Return the places of draws, as in `Draws`, without masks of their step."""
        is_held = positions < self._held_until[numbers]
        places = np.empty((len(numbers), NUM_PLACES), dtype=np.int64)
        places[:, 0], places[:, 1] = numbers, [slot.num_prompt for slot in tenants]
        places[:, 2], places[:, 3] = positions, NO_MASK
        places[:, 4:] = self._bias_ranges[numbers, is_held.astype(np.int64)]
        return places

    def settle(self, results: Sequence[RowResult]) -> None:
        """Make the counts of drafted sequences exact, as far as these have not left."""
        for row in results:
            slot = self._slots[row.slot]
            if slot is not None and slot.epoch == row.epoch and slot.num_guessed:
                slot.num_computed, slot.num_known = row.num_computed, row.num_computed + 1
                slot.num_guessed = 0

    def _compute(self, row: Row, slot: Slot) -> None:
        """Count a row's tokens, with its draft. Raises PlanError for an invalid row."""
        begin, end = slot.num_computed, slot.num_computed + row.num_tokens
        if slot.num_guessed:
            raise PlanError(f"slot {row.slot} has a draft in flight: collect its step first")
        if row.forced:
            self._force(row, slot)
        if not begin < end <= slot.num_known or end > min(slot.num_blocks) * BLOCK_SIZE:
            raise PlanError(
                f"slot {row.slot} can't compute tokens {begin} to {end}: it knows {slot.num_known} "
                f"and has {min(slot.num_blocks)} blocks"
            )
        slot.num_computed = end
        if row.emit:
            if end != slot.num_known or end >= self._length:
                raise PlanError(f"slot {row.slot} can't emit after token {end} of {slot.num_known}")
            slot.num_known += 1
        elif row.is_masked:
            raise PlanError(f"slot {row.slot} has a mask and draws nothing")
        if row.draft:
            self._guess(row, slot)

    def _force(self, row: Row, slot: Slot) -> None:
        """Write forced tokens after the known ones. Raises PlanError for invalid ones."""
        end = slot.num_known + len(row.forced)
        if end >= self._length:
            raise PlanError(f"slot {row.slot} has no place for {len(row.forced)} more tokens")
        self._write_tokens(row.slot, slot.num_known, row.forced)
        slot.num_known = end

    def _write_tokens(self, slot: int, begin: int, tokens: tuple[int, ...]) -> None:
        """Write tokens of the engine's. Raises PlanError for one outside the vocabulary."""
        if not 0 <= min(tokens) <= max(tokens) < self._limits.vocabulary_size:
            raise PlanError(f"slot {slot} can't have a token outside the vocabulary")
        self._token_writes.write(slot, begin, np.array(tokens, dtype=np.int32))

    def _guess(self, row: Row, slot: Slot) -> None:
        """Write a draft after the known tokens, and count it. Raises PlanError for an invalid one."""
        count, begin = len(row.draft), slot.num_computed
        if count > (most := self._limits.max_draft):
            raise PlanError(f"slot {row.slot} has a draft of {count} tokens: this executor verifies {most}")
        if not row.emit:
            raise PlanError(f"slot {row.slot} has a draft, but no draw of its own")
        end = begin + count
        if end >= self._length or end > min(slot.num_blocks) * BLOCK_SIZE:
            raise PlanError(f"slot {row.slot} has no room for a draft of {count} tokens after {begin}")
        self._write_tokens(row.slot, begin, row.draft)
        slot.num_computed, slot.num_known, slot.num_guessed = end, slot.num_known + count, count

    def _start(self, start: SlotStart) -> None:
        count = count_tokens(start.tokens)
        if not 0 <= start.slot < len(self._slots) or self._slots[start.slot] is not None:
            raise PlanError(f"slot {start.slot} is not free")
        if not 0 <= start.num_computed < count < self._length:
            raise PlanError(f"slot {start.slot} starts with {start.num_computed} of {count} tokens computed")
        if len(start.blocks) != len(self.groups):
            raise PlanError(
                f"slot {start.slot} has {len(start.blocks)} KV groups: this executor has {len(self.groups)}"
            )
        unscored = find_unscored(start)
        if unscored is not None and start.num_computed >= unscored.begin:
            raise PlanError(
                f"slot {start.slot} starts with {start.num_computed} tokens computed, which nobody has scored"
            )
        check_sampling(start.sampling, self._limits.vocabulary_size)
        self._token_writes.write(start.slot, 0, np.frombuffer(bytearray(start.tokens), dtype=np.int32))
        sampling = start.sampling
        self._slots[start.slot] = Slot(
            epoch=start.epoch,
            num_logprobs=sampling.num_logprobs,
            unscored=unscored,
            num_prompt=start.num_prompt,
            num_known=count,
            num_computed=start.num_computed,
            num_blocks=[0] * len(self.groups),
        )
        self._set_sampling(start)
        for group, blocks in enumerate(start.blocks):
            self._append(BlockAppend(start.slot, group, blocks))

    def _set_sampling(self, start: SlotStart) -> None:
        sampling, slot = start.sampling, start.slot
        self._parameters[slot] = pack(sampling)
        entries, self._bias_ranges[slot] = lay_out_bias(sampling)
        self._held_until[slot] = start.num_prompt + sampling.min_tokens if sampling.held_back else 0
        if len(entries):
            self._bias_writes.write(slot, 0, entries)
        if sampling.allowed is not None:
            self._mask_writes.write(slot, 0, np.frombuffer(bytearray(sampling.allowed), dtype=np.int32))

    def _append(self, append: BlockAppend) -> None:
        slot, number = self[append.slot], append.group
        if not 0 <= number < len(self.groups):
            raise PlanError(
                f"slot {append.slot} has no KV group {number}: this executor has {len(self.groups)}"
            )
        begin, most = slot.num_blocks[number], self.groups[number].num_blocks
        end = begin + len(append.blocks)
        _, num_slots, width = self.blocks.shape
        if end > width or not all(0 <= block < most for block in append.blocks):
            raise PlanError(f"slot {append.slot} can't take the blocks {append.blocks} after {begin}")
        if append.blocks:
            self._block_writes.write(number * num_slots + append.slot, begin, np.array(append.blocks))
        slot.num_blocks[number] = end
