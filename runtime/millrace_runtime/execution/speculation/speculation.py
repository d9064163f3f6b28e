"""Drafts for an executor's rows: guessed when a step is collected, and put into the next plan.

The tokens and the guesses lie on the host of the engine, so that all workers of a model get the same ones.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from millrace_runtime.execution.speculation.history import History
from millrace_runtime.execution.speculation.pace import Pace
from millrace_runtime.execution.speculation.proposer import Ask, Proposer
from millrace_runtime.execution.speculation.token_cost import TokenCost
from millrace_runtime.protocol.step import Limits, Row, RowResult, StepPlan, StepResult


@dataclass(slots=True)
class _Guessed:
    """A sequence that may be guessed at."""

    epoch: int
    history: History
    pace: Pace = field(default_factory=Pace)
    guesses: tuple[int, ...] = ()
    """After the collected tokens."""


class Speculation:
    """Owns the guesses, by slot. Each plan passes through `add_drafts`, and its result through `offer`."""

    def __init__(self, limits: Limits, proposer: Proposer) -> None:
        self._limits, self._proposer = limits, proposer
        self._slots: dict[int, _Guessed] = {}
        self._in_flight: deque[StepPlan] = deque()
        self._cost = TokenCost()

    def add_drafts(self, plan: StepPlan) -> StepPlan:
        """Return a plan that is to be submitted, with the drafts of its rows."""
        for slot in plan.released:
            self._slots.pop(slot, None)
        for start in plan.starts:
            self._slots[start.slot] = _Guessed(start.epoch, History(start.tokens))
        if any(row.max_draft for row in plan.rows):
            plan = msgspec.structs.replace(plan, rows=[self._add_draft(row) for row in plan.rows])
        self._in_flight.append(plan)
        return plan

    def offer(self, result: StepResult) -> StepResult:
        """Return the oldest plan's result, with the number of guesses that each sequence's next row has."""
        plan = self._in_flight.popleft()
        if plan.rows and not result.num_compiled and all(row.num_tokens == 1 for row in plan.rows):
            num_tokens = sum([1 + len(row.draft) for row in plan.rows])
            self._cost.observe(num_tokens, result.seconds)
        asked = self._note(plan.rows, result.rows)
        if not asked:
            return result
        rows = list(result.rows)
        for number, count in self._guess(rows, asked):
            rows[number] = msgspec.structs.replace(rows[number], next_draft=count)
        return msgspec.structs.replace(result, rows=rows)

    def _add_draft(self, row: Row) -> Row:
        if not row.max_draft:
            return row
        return Row(
            row.slot, row.num_tokens, row.emit, row.max_draft, self._slots[row.slot].guesses[: row.max_draft]
        )

    def _note(self, rows: Sequence[Row], results: Sequence[RowResult]) -> list[int]:
        """Add the drawn tokens to their sequences. Return the numbers of the rows that may have guesses."""
        numbers = []
        for number, (row, result) in enumerate(zip(rows, results, strict=True)):
            guessed = self._slots.get(row.slot)
            if not row.emit or guessed is None or guessed.epoch != result.epoch:
                continue
            guessed.history.append(result.tokens)
            guessed.guesses = ()
            if row.draft:
                guessed.pace.note(len(row.draft), len(result.tokens) - 1)
            if not row.is_masked and result.fault is None:
                numbers.append(number)
        return numbers

    def _guess(self, results: Sequence[RowResult], numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Guess for these rows, as many tokens as are worth it. Return the rows' numbers of guesses."""
        cost, most = self._cost.relative, self._limits.max_draft
        asks = []
        for number in numbers:
            guessed = self._slots[results[number].slot]
            if length := guessed.pace.choose(cost, len(numbers), most, self._limits.depth):
                asks.append((number, guessed, length))
        found = self._proposer.propose(
            [Ask(results[number].slot, guessed.history.read(), length) for number, guessed, length in asks]
        )
        counts = []
        for (number, guessed, _), guesses in zip(asks, found, strict=True):
            guessed.guesses = tuple(guesses)
            counts.append((number, len(guesses)))
        return counts


def open_speculation(limits: Limits, proposer: Proposer) -> Speculation | None:
    """Return what speculates for an executor; None if it verifies no drafts."""
    return Speculation(limits, proposer) if limits.max_draft else None
