"""Sequences' slots: token ids and block tables on the device, lengths and epochs on the host."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.transfer import upload_all
from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.sampler import Draw
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import (
    BlockAppend,
    Limits,
    Row,
    RowResult,
    SlotStart,
    StepPlan,
    TokenLogprobs,
)
from millrace_runtime.protocol.tokens import count_tokens


class Span(NamedTuple):
    """A row's tokens: positions `begin` to `end` of the sequence in `slot`."""

    slot: int
    begin: int
    end: int


@dataclass(slots=True)
class Slot:
    """One sequence in its slot. Submitted work counts as done, because plans run in order."""

    epoch: int
    sampling: Sampling
    num_prompt: int
    num_known: int
    """Tokens in the table: given ones and drawn ones."""
    num_computed: int
    """Tokens whose KV is written."""
    num_blocks: int


class Outcome(NamedTuple):
    """A row's drawn token with its log-probabilities, or why there is none."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    fault: str | None = None

    @classmethod
    def failed(cls, fault: str) -> "Outcome":
        """Return the outcome of a draw that failed."""
        return cls([], [], fault)


_NOT_DRAWN = Outcome([], [])


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """A plan's rows as positions and draws."""

    step: int
    spans: list[Span]
    """By row, as are the epochs."""
    epochs: list[int]
    emits: list[int]
    """Numbers of the rows that draw."""
    draws: list[Draw]
    """What each row that draws needs, in the order of `emits`."""
    masked: list[int]
    """Numbers of the masked rows."""

    def answer(self, outcomes: list[Outcome]) -> list[RowResult]:
        """Return each row's result, from the outcomes of the rows that draw."""
        by_row = dict(zip(self.emits, outcomes, strict=True))
        rows = []
        for number, (span, epoch) in enumerate(zip(self.spans, self.epochs, strict=True)):
            tokens, logprobs, fault = by_row.get(number, _NOT_DRAWN)
            rows.append(RowResult(span.slot, epoch, tokens, span.end, 0, logprobs, fault))
        return rows


class TableWriter:
    """Writes numbers into rows of a table: on a CPU at once, on a GPU all of a plan's by one copy."""

    def __init__(self, table: Tensor) -> None:
        """`table` int64 [rows, columns]"""
        self._table, self._device = table, table.device
        self._targets: list[NDArray[np.int64]] = []
        self._values: list[NDArray[Any]] = []

    def write(self, row: int, begin: int, values: NDArray[Any]) -> None:
        """Write numbers from a column on."""
        if self._device.type == "cpu":
            self._table[row, begin : begin + len(values)] = torch.from_numpy(values)
            return
        first = row * self._table.shape[1] + begin
        self._targets.append(np.arange(first, first + len(values)))
        self._values.append(values.astype(np.int64))

    def flush(self) -> None:
        """Launch what was written since the last time. No place was written twice: the order is not kept."""
        if self._targets:
            targets, values = upload_all(
                (np.concatenate(self._targets), np.concatenate(self._values)), self._device
            )
            self._table.view(-1).index_copy_(0, targets, values)
            self._targets, self._values = [], []


class SlotTable:
    """Owns the slots and their contents."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        num_slots, max_length = limits.num_slots, limits.max_model_length
        width = -(-max_length // BLOCK_SIZE)
        self.tokens = torch.zeros((num_slots, max_length + 1), dtype=torch.int64, device=device)
        """[slots, max_length + 1]: the token drawn after the last position has a place too."""
        self.blocks = torch.zeros((num_slots, width), dtype=torch.int64, device=device)
        self._token_writes, self._block_writes = TableWriter(self.tokens), TableWriter(self.blocks)
        self._num_cache_blocks = limits.groups[0].num_blocks
        self._max_batched_tokens = limits.max_batched_tokens
        self._slots: list[Slot | None] = [None] * num_slots

    def __getitem__(self, slot: int) -> Slot:
        """Return the tenant. Raises PlanError for an empty slot."""
        tenant = self._slots[slot] if 0 <= slot < len(self._slots) else None
        if tenant is None:
            raise PlanError(f"slot {slot} holds no sequence")
        return tenant

    @property
    def is_empty(self) -> bool:
        """Whether no slot has a tenant."""
        return not any(self._slots)

    def apply(self, plan: StepPlan) -> AppliedPlan:
        """Release, start, append and count the rows as computed, in this order. Raises PlanError."""
        num_tokens = sum(row.num_tokens for row in plan.rows)
        if num_tokens > self._max_batched_tokens:
            # The native path's memory holds no more, and it does not look.
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
        self._token_writes.flush()
        self._block_writes.flush()
        if len({row.slot for row in plan.rows}) != len(plan.rows):
            # Native rows are written by several threads: two of one sequence would race in the KV cache.
            raise PlanError(f"step {plan.step} has two rows of one slot")
        applied = AppliedPlan(plan.step, [], [], [], [], [])
        for number, row in enumerate(plan.rows):
            self._advance(row, number, applied)
        return applied

    def _advance(self, row: Row, number: int, applied: AppliedPlan) -> None:
        slot = self[row.slot]
        begin, end = slot.num_computed, slot.num_computed + row.num_tokens
        if begin >= end or end > slot.num_known or end > slot.num_blocks * BLOCK_SIZE:
            raise PlanError(
                f"slot {row.slot} can't compute tokens {begin} to {end}: it knows {slot.num_known} "
                f"and has {slot.num_blocks} blocks"
            )
        if row.max_draft or row.draft:
            raise PlanError(f"slot {row.slot} is to verify a draft: this executor knows none")
        slot.num_computed = end
        applied.spans.append(Span(row.slot, begin, end))
        applied.epochs.append(slot.epoch)
        if row.emit:
            self._emit(row, slot)
            applied.emits.append(number)
            mask = len(applied.masked) if row.is_masked else None
            applied.draws.append(Draw(slot.sampling, end, row.slot, slot.num_prompt, mask))
            if row.is_masked:
                applied.masked.append(number)
        elif row.is_masked:
            raise PlanError(f"slot {row.slot} has a mask and draws nothing")

    def _emit(self, row: Row, slot: Slot) -> None:
        if slot.num_computed != slot.num_known or slot.num_computed >= self.tokens.shape[1]:
            raise PlanError(f"slot {row.slot} can't emit after token {slot.num_computed} of {slot.num_known}")
        slot.num_known += 1

    def _start(self, start: SlotStart) -> None:
        count = count_tokens(start.tokens)
        if not 0 <= start.slot < len(self._slots) or self._slots[start.slot] is not None:
            raise PlanError(f"slot {start.slot} is not free")
        if not 0 <= start.num_computed < count < self.tokens.shape[1]:
            raise PlanError(f"slot {start.slot} starts with {start.num_computed} of {count} tokens computed")
        if len(start.blocks) != 1:
            raise PlanError(f"slot {start.slot} has {len(start.blocks)} KV groups: this executor knows one")
        self._token_writes.write(start.slot, 0, np.frombuffer(bytearray(start.tokens), dtype=np.int32))
        self._slots[start.slot] = Slot(
            start.epoch, start.sampling, start.num_prompt, count, start.num_computed, 0
        )
        self._append(BlockAppend(start.slot, 0, start.blocks[0]))

    def _append(self, append: BlockAppend) -> None:
        slot = self[append.slot]
        if append.group != 0:
            raise PlanError(f"slot {append.slot} has no KV group {append.group}: this executor knows one")
        begin, end = slot.num_blocks, slot.num_blocks + len(append.blocks)
        if end > self.blocks.shape[1] or not all(0 <= b < self._num_cache_blocks for b in append.blocks):
            raise PlanError(f"slot {append.slot} can't take the blocks {append.blocks} after {begin}")
        if append.blocks:
            self._block_writes.write(append.slot, begin, np.array(append.blocks))
        slot.num_blocks = end
