"""Guesses for an executor's sequences, made when a step is collected, and offered with its result.

The tokens and the guesses lie on the host of the engine, so that all workers of a model get the same ones.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from millrace_runtime.execution.speculation.draft_length import Pace, TokenCost
from millrace_runtime.execution.speculation.proposer import Ask, Proposer
from millrace_runtime.protocol.step import Limits, Row, RowResult, StepPlan, StepResult


class History:
    """Every known token of one sequence: appended one by one, and read as one array."""

    def __init__(self, tokens: bytes) -> None:
        """`tokens` are packed (`protocol/encoding.py`)."""
        self._memory = np.frombuffer(tokens, dtype=np.int32)  # no copy: most sequences may never be read
        self._count = len(self._memory)
        self._recent: list[int] = []

    def append(self, tokens: list[int]) -> None:
        """Append tokens."""
        self._recent += tokens

    def read(self) -> NDArray[np.int32]:
        """Return all tokens, int32 [tokens], valid until the next `append`."""
        end = self._count + len(self._recent)
        if end > len(self._memory):
            grown = np.empty(2 * end, dtype=np.int32)
            grown[: self._count] = self._memory[: self._count]
            self._memory = grown
        if self._recent:
            self._memory[self._count : end] = self._recent
            self._count, self._recent = end, []
        return self._memory[:end]


@dataclass(slots=True)
class _Guessed:
    """A sequence that may be guessed at."""

    epoch: int
    history: History
    pace: Pace = field(default_factory=Pace)


class Speculation:
    """Knows the texts, by slot. Each plan goes to `follow`, and its result through `offer`."""

    def __init__(self, limits: Limits, proposer: Proposer) -> None:
        self._limits, self._proposer = limits, proposer
        self._slots: dict[int, _Guessed] = {}
        self._in_flight: deque[StepPlan] = deque()
        self._cost = TokenCost()

    def follow(self, plan: StepPlan) -> None:
        """Note a plan that is submitted."""
        for slot in plan.released:
            self._slots.pop(slot, None)
        for start in plan.starts:
            self._slots[start.slot] = _Guessed(start.epoch, History(start.tokens))
        for row in plan.rows:
            if row.forced:
                self._slots[row.slot].history.append([*row.forced])
        self._in_flight.append(plan)

    def offer(self, result: StepResult) -> StepResult:
        """Return the oldest plan's result, with the guesses for each sequence's next row."""
        plan = self._in_flight.popleft()
        is_decode = all(row.num_tokens <= 1 + len(row.forced) for row in plan.rows)
        if plan.rows and not result.num_compiled and is_decode:
            num_tokens = sum([row.num_tokens + len(row.draft) for row in plan.rows])
            self._cost.observe(num_tokens, result.seconds)
        asked = self._note(plan.rows, result.rows)
        if not asked:
            return result
        rows = list(result.rows)
        for number, guesses in self._guess(rows, asked):
            rows[number] = msgspec.structs.replace(rows[number], next_draft=guesses)
        return msgspec.structs.replace(result, rows=rows)

    def _note(self, rows: Sequence[Row], results: Sequence[RowResult]) -> list[int]:
        """Add the drawn tokens to their sequences. Return the numbers of the rows that may have guesses."""
        numbers = []
        for number, (row, result) in enumerate(zip(rows, results, strict=True)):
            guessed = self._slots.get(row.slot)
            if not row.emit or guessed is None or guessed.epoch != result.epoch:
                continue
            guessed.history.append(result.tokens)
            if row.draft:
                guessed.pace.note(len(row.draft), len(result.tokens) - 1)
            if result.fault is None:
                numbers.append(number)
        return numbers

    def _guess(
        self, results: Sequence[RowResult], numbers: Sequence[int]
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Guess for these rows, as many tokens as are worth it. Return their numbers with the guesses."""
        cost, most = self._cost.relative, self._limits.max_draft
        asks = []
        for number in numbers:
            guessed = self._slots[results[number].slot]
            if length := guessed.pace.choose(cost, len(numbers), most, self._limits.depth):
                asks.append((number, guessed, length))
        found = self._proposer.propose(
            [Ask(results[number].slot, guessed.history.read(), length) for number, guessed, length in asks]
        )
        return [(number, tuple(guesses)) for (number, *_), guesses in zip(asks, found, strict=True)]


def open_speculation(limits: Limits, proposer: Proposer) -> Speculation | None:
    """Return an executor's Speculation; None if the executor verifies no drafts."""
    return Speculation(limits, proposer) if limits.max_draft else None
