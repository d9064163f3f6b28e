"""Plans with drafts that an executor refuses, and a draft whose sequence leaves before its result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED, Row, RowResult, SlotStart, StepPlan
from tests.runtime.engine.engine_driver import pack_mask


@pytest.fixture
def verifier(make_model: Callable[..., Path], make_driver: Callable[..., Any]) -> LocalExecutor:
    """An executor that guesses nothing itself."""
    executor: LocalExecutor = make_driver(make_model(), speculative_tokens=4, max_sequences=2).executor
    executor._speculation = None
    return executor


def start(slot: int = 0, count: int = 5) -> SlotStart:
    tokens = pack_tokens(range(count))
    return SlotStart(slot, slot, tokens, 0, [[7]], Sampling(temperature=0.0), count)


def step(*rows: Row, number: int = 0, **changes: Any) -> StepPlan:
    return StepPlan(number, **({"released": [], "starts": [], "appends": []} | changes), rows=list(rows))


@pytest.mark.parametrize(
    ("row", "count", "message"),
    [
        (Row(0, 5, True, (1,) * 5), 5, "a draft of 5 tokens: this executor verifies 4"),
        (Row(0, 4, False, (1,)), 5, "no draw of its own"),
        (Row(0, 14, True, (1, 2, 3, 4)), 14, "no room for a draft of 4 tokens after 14"),
        (Row(0, 5, True, (199,)), 5, "outside the vocabulary"),
        (Row(0, 5, True, (-1,)), 5, "outside the vocabulary"),
        (Row(0, 6, True, forced=(199,)), 5, "outside the vocabulary"),
        (Row(0, 6, True, forced=(1,) * 10_000), 5, "no place for 10000 more tokens"),
        (Row(0, 6, True), 5, "can't compute tokens 0 to 6"),
    ],
)
def test_an_invalid_row_is_refused(verifier: LocalExecutor, row: Row, count: int, message: str) -> None:
    verifier.submit(step(row, starts=[start(count=count)]))
    with pytest.raises(PlanError, match=message):
        verifier.collect()


def test_forced_tokens_are_as_if_they_had_been_drawn(verifier: LocalExecutor) -> None:
    """Another slot starts with them, as after a preemption. Penalties count them in both."""
    sampling = Sampling(temperature=0.0, frequency_penalty=1.5)

    def run(number: int, row: Row, *starts: SlotStart) -> RowResult:
        verifier.submit(step(row, number=number, starts=list(starts)))
        return verifier.collect().rows[0]

    prompt = pack_tokens(range(5))
    [first] = run(0, Row(0, 5, True), SlotStart(0, 0, prompt, 0, [[7]], sampling, 5)).tokens
    found = run(1, Row(0, 3, True, forced=(8, 8)))
    assert found.num_computed == 8
    again = SlotStart(1, 1, prompt + pack_tokens([first, 8, 8]), 0, [[6]], sampling, 5)
    assert run(2, Row(1, 8, True), again).tokens == found.tokens


def test_an_empty_mask_behind_a_right_guess_ends_the_row_before_it(verifier: LocalExecutor) -> None:
    """The same mask before any guess is a fault."""

    def run(row: Row, *allowed: set[int], **changes: Any) -> RowResult:
        verifier.submit(step(row, **changes))
        verifier.provide_masks(
            changes["number"], memoryview(b"".join(pack_mask(one, 199) for one in allowed))
        )
        [result] = verifier.collect().rows
        return result

    cut = run(Row(0, 5, True, (7, 8), is_masked=True), {7}, set(), {9}, number=0, starts=[start()])
    assert (cut.fault, cut.tokens, cut.num_computed) == (None, [7], 5)
    cut = run(Row(0, 1, True, (9, 8), is_masked=True), {9}, set(), {8}, number=1)
    assert (cut.fault, cut.tokens, cut.num_computed) == (None, [9], 6)
    whole = run(Row(0, 1, True, (3, 8), is_masked=True), {3}, {8}, {5}, number=2)
    assert (whole.fault, whole.tokens, whole.num_computed) == (None, [3, 8, 5], 9)
    assert run(Row(0, 1, True, (3,), is_masked=True), set(), {8}, number=3).fault == FAULT_NOTHING_ALLOWED


def test_a_step_has_memory_for_some_draws(verifier: LocalExecutor) -> None:
    assert verifier.limits.max_draws == 10
    verifier._slots._limits = msgspec.structs.replace(verifier.limits, max_draws=9)
    rows = [Row(slot, 5, True, (1,) * 4) for slot in range(2)]
    verifier.submit(step(*rows, starts=[start(0), start(1)]))
    with pytest.raises(PlanError, match="step 0 has 10 draws, more than the 9 that fit"):
        verifier.collect()


def test_until_its_draft_is_verified_a_slot_has_no_other_row_but_may_be_released(
    verifier: LocalExecutor,
) -> None:
    slots = verifier._slots
    applied = slots.apply(step(Row(0, 5, True, (1, 2)), starts=[start(0)]))
    late = applied.answer([7, 8, 9], {})
    assert (late[0].tokens, late[0].num_computed) == ([7], 5)
    with pytest.raises(PlanError, match="slot 0 has a draft in flight: collect its step first"):
        slots.apply(step(Row(0, 1, True)))
    again = msgspec.structs.replace(start(0), epoch=9)
    slots.apply(step(Row(0, 3, False), released=[0], starts=[again]))
    slots.settle(late)
    assert slots[0].num_computed == 3
