"""Sequences' slots: token ids and block tables on the device, lengths and epochs on the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.sampling.columns import NO_MASK, NUM_PLACES, PARAMETERS, Draws
from millrace_kernels.sampling.state import SlotState
from millrace_kernels.transfer import TableWriter
from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.sampler import check_sampling, lay_out_bias, pack
from millrace_runtime.execution.scoring import Scored, Unscored, choose_scored, find_unscored
from millrace_runtime.protocol.encoding import count_tokens
from millrace_runtime.protocol.sampling import MOST_BIASED
from millrace_runtime.protocol.step import (
    BlockAppend,
    Limits,
    Row,
    RowResult,
    SlotStart,
    StepPlan,
    TokenLogprobs,
)


class Spans(NamedTuple):
    """Each row's tokens: positions `begins` to `ends` of the sequences in `slots`. int64 [rows] each."""

    slots: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


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


class Outcome(NamedTuple):
    """The rest of a draw's result beside its token: log-probabilities, or why the token is meaningless."""

    logprobs: list[TokenLogprobs]
    fault: str | None = None


_NO_OUTCOME = Outcome([])


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """A plan's rows as positions and draws."""

    step: int
    spans: Spans
    """By row."""
    epochs: list[int]
    """By row."""
    emits: list[int]
    """Numbers of the rows that draw."""
    draws: Draws
    """The parameters of each draw, in the order of `emits`."""
    scored: list[Scored]
    """The tokens of prompts to score, by the wanted number of likely ones."""
    num_logprobs: list[int | None]
    """The wanted number of log-probabilities of each draw, in the order of `emits`."""
    is_masked: bool
    """Whether any draw has a mask."""

    @property
    def early_draws(self) -> Draws | None:
        """The draws, if every row draws and none waits for a mask: they are then known before the step."""
        is_early = len(self.emits) == len(self.epochs) and not self.is_masked
        return self.draws if is_early else None

    def answer(self, tokens: Sequence[int], outcomes: Mapping[int, Outcome]) -> list[RowResult]:
        """Return each row's result, from the tokens of the rows that draw and some outcomes by place."""
        drawn: list[list[int]] = [[]] * len(self.epochs)
        beside = [_NO_OUTCOME] * len(self.epochs)
        for number, token in zip(self.emits, tokens, strict=True):
            drawn[number] = [token]
        for place, outcome in outcomes.items():
            number = self.emits[place]
            beside[number] = outcome
            if outcome.fault is not None:
                drawn[number] = []
        slots, ends = self.spans.slots.tolist(), self.spans.ends.tolist()
        return [
            RowResult(slot, epoch, mine, end, logprobs=logprobs, fault=fault)
            for slot, epoch, mine, end, (logprobs, fault) in zip(
                slots, self.epochs, drawn, ends, beside, strict=True
            )
        ]


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
        self._vocabulary_size = limits.vocabulary_size
        self._max_batched_tokens = limits.max_batched_tokens
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
    def is_empty(self) -> bool:
        """Whether no slot has a sequence."""
        return not any(self._slots)

    def apply(self, plan: StepPlan) -> AppliedPlan:
        """Release, start, append and count the rows as computed, in this order. Raises PlanError."""
        num_tokens = sum([row.num_tokens for row in plan.rows])
        if num_tokens > self._max_batched_tokens:
            # The native kernels have memory for no more, and do not check.
            raise PlanError(
                f"step {plan.step} has {num_tokens} tokens, more than the {self._max_batched_tokens} that fit"
            )
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

    def _advance(self, plan: StepPlan) -> AppliedPlan:
        """Count the rows' tokens as computed, and their draws as known."""
        rows, slots = plan.rows, [self[row.slot] for row in plan.rows]
        begins = [slot.num_computed for slot in slots]
        for row, slot in zip(rows, slots, strict=True):
            self._compute(row, slot)
        ends = [slot.num_computed for slot in slots]
        spans = Spans(*(np.array(one, dtype=np.int64) for one in ([row.slot for row in rows], begins, ends)))
        emits = [number for number, row in enumerate(rows) if row.emit]
        drawing, is_masked = [slots[number] for number in emits], any(row.is_masked for row in rows)
        is_whole = len(emits) == len(rows)
        drawn = spans.slots if is_whole else spans.slots[emits]
        positions = spans.ends if is_whole else spans.ends[emits]
        is_held = positions < self._held_until[drawn]
        places = np.empty((len(emits), NUM_PLACES), dtype=np.int64)
        places[:, 0], places[:, 1] = drawn, [slot.num_prompt for slot in drawing]
        places[:, 2], places[:, 3] = positions, NO_MASK
        places[:, 4:] = self._bias_ranges[drawn, is_held.astype(np.int64)]
        if is_masked:
            masked = [place for place, number in enumerate(emits) if rows[number].is_masked]
            places[masked, 3] = range(len(masked))
        return AppliedPlan(
            step=plan.step,
            spans=spans,
            epochs=[slot.epoch for slot in slots],
            emits=emits,
            draws=Draws(self._parameters[drawn], places),
            scored=choose_scored(spans, [slot.unscored for slot in slots]),
            num_logprobs=[slot.num_logprobs for slot in drawing],
            is_masked=is_masked,
        )

    def _compute(self, row: Row, slot: Slot) -> None:
        """Count a row's tokens. Raises PlanError for an invalid row."""
        begin, end = slot.num_computed, slot.num_computed + row.num_tokens
        num_blocks = min(slot.num_blocks)
        if not begin < end <= slot.num_known or end > num_blocks * BLOCK_SIZE:
            raise PlanError(
                f"slot {row.slot} can't compute tokens {begin} to {end}: it knows {slot.num_known} "
                f"and has {num_blocks} blocks"
            )
        if row.max_draft or row.draft:
            raise PlanError(f"slot {row.slot} has a draft to verify: this executor supports none")
        slot.num_computed = end
        if row.emit:
            if end != slot.num_known or end >= self._length:
                raise PlanError(f"slot {row.slot} can't emit after token {end} of {slot.num_known}")
            slot.num_known += 1
        elif row.is_masked:
            raise PlanError(f"slot {row.slot} has a mask and draws nothing")

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
        check_sampling(start.sampling, self._vocabulary_size)
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
