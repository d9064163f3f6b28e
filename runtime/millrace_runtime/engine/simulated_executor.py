"""An executor without a device, for the scheduler's tests: it believes nothing that a plan says.

Its KV cache holds token ids, and the next token is a function of what it reads there through the block
table. So a block that two sequences share, or that was freed too early, changes a text.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from millrace_runtime.protocol.step import Limits, Row, RowResult, SlotStart, StepPlan, StepResult

POISON = -1
"""What a block holds that nobody wrote."""


@dataclass
class _Slot:
    epoch: int
    tokens: list[int]
    blocks: list[int]
    num_computed: int


class SimulatedExecutor:
    """Runs plans as they are submitted, and fails an assertion on one that breaks the protocol."""

    def __init__(self, limits: Limits, next_token: Callable[[list[int]], int | None]) -> None:
        """`next_token` maps a sequence's tokens to the next one, or to None for a fault."""
        self.limits = limits
        self.max_num_tokens = 0
        """The most tokens that one plan had."""
        self._next_token = next_token
        self._cells = [[POISON] * limits.block_size for _ in range(limits.num_blocks)]
        self._slots: dict[int, _Slot] = {}
        self._results: deque[StepResult] = deque()
        self._next_step = 0

    def submit(self, plan: StepPlan) -> None:
        """Run a plan, and keep its result for `collect`."""
        assert plan.step == self._next_step
        assert len(self._results) < self.limits.depth
        self._next_step += 1
        for slot in plan.released:
            del self._slots[slot]
        for start in plan.starts:
            self._start(start)
        for append in plan.appends:
            self._slots[append.slot].blocks.extend(append.blocks)
        self._check_tables()
        self.max_num_tokens = max(self.max_num_tokens, sum(row.num_tokens for row in plan.rows))
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        self._results.append(StepResult(plan.step, [self._run(row) for row in plan.rows], 0.001))

    def collect(self) -> StepResult:
        """Return the oldest result."""
        return self._results.popleft()

    def _start(self, start: SlotStart) -> None:
        assert 0 <= start.slot < self.limits.num_slots
        assert start.slot not in self._slots, "a slot was started that is not released"
        assert 0 < start.num_prompt <= len(start.tokens)
        self._slots[start.slot] = _Slot(
            start.epoch, list(start.tokens), list(start.blocks), start.num_computed
        )

    def _check_tables(self) -> None:
        blocks = [block for slot in self._slots.values() for block in slot.blocks]
        assert len(set(blocks)) == len(blocks), "two slots share a block"

    def _run(self, row: Row) -> RowResult:
        slot = self._slots[row.slot]
        end = slot.num_computed + row.num_tokens
        assert row.num_tokens > 0
        assert row.emit == (end == len(slot.tokens)), "a row emits exactly at the end of what is known"
        for position in range(slot.num_computed, end):
            block, offset = divmod(position, self.limits.block_size)
            self._cells[slot.blocks[block]][offset] = slot.tokens[position]
        slot.num_computed = end
        return self._emit(row, slot) if row.emit else RowResult(row.slot, slot.epoch, None, None, None)

    def _emit(self, row: Row, slot: _Slot) -> RowResult:
        size = self.limits.block_size
        kv = [self._cells[slot.blocks[at // size]][at % size] for at in range(slot.num_computed)]
        token = self._next_token(kv)
        if token is None:
            return RowResult(row.slot, slot.epoch, None, None, "the logits are not finite")
        slot.tokens.append(token)
        assert len(slot.tokens) <= self.limits.max_model_length, "a token was drawn beyond the model's length"
        return RowResult(row.slot, slot.epoch, token, None, None)
