from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace_runtime.execution.errors import PlanError
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import BlockAppend, Row, SlotStart, StepPlan


@pytest.fixture
def executor(make_model: Callable[..., Path], make_driver: Callable[..., Any]) -> Executor:
    executor: Executor = make_driver(make_model()).executor
    return executor


def start(slot: int = 0, count: int = 5, epoch: int = 0, num_computed: int = 0) -> SlotStart:
    tokens = list(range(count))
    return SlotStart(slot, epoch, pack_tokens(tokens), num_computed, [[7]], Sampling(temperature=0.0), count)


def drawn_by(**sampling: Any) -> SlotStart:
    return msgspec.structs.replace(start(0), sampling=Sampling(**sampling))


def plan(*rows: Row, **parts: Any) -> StepPlan:
    values: dict[str, Any] = {"step": 4, "released": [], "starts": [], "appends": []}
    return StepPlan(rows=list(rows), **(values | parts))


def run(executor: Executor, step: StepPlan) -> Any:
    executor.submit(step)
    return executor.collect()


def test_a_result_answers_its_plan(executor: Executor) -> None:
    result = run(
        executor, plan(Row(1, 5, emit=True), Row(0, 2, emit=False), starts=[start(0), start(1, epoch=9)])
    )
    assert result.step == 4
    assert [(row.slot, row.epoch, len(row.tokens), row.num_computed) for row in result.rows] == [
        (1, 9, 1, 5),
        (0, 0, 0, 2),
    ]
    assert result.seconds > 0


def test_a_plan_without_rows_changes_slots_only(executor: Executor) -> None:
    assert run(executor, plan(starts=[start(0)])).rows == []
    assert run(executor, plan(released=[0])).rows == []
    assert run(executor, plan(starts=[start(0)])).rows == []


def test_a_prefix_hit_computes_only_the_rest(executor: Executor) -> None:
    whole = run(executor, plan(Row(0, 5, emit=True), starts=[start(0)])).rows[0].tokens
    hit = plan(Row(1, 2, emit=True), starts=[start(1, num_computed=3)])
    assert run(executor, hit).rows[0].tokens == whole


def test_depth_is_a_bound(executor: Executor) -> None:
    executor.submit(plan(starts=[start(0)]))
    with pytest.raises(PlanError, match="collect one"):
        executor.submit(plan())
    executor.collect()
    with pytest.raises(PlanError, match="submit one"):
        executor.collect()


def test_a_plan_larger_than_a_step_may_be_is_refused_and_changes_nothing(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    executor = make_driver(make_model(), max_batched_tokens=8).executor
    assert executor.limits.max_batched_tokens == 8
    executor.submit(plan(Row(0, 5, True), Row(1, 4, False), starts=[start(0), start(1)]))
    with pytest.raises(PlanError, match="has 9 tokens, more than the 8 that fit"):
        executor.collect()
    assert run(executor, plan(Row(0, 5, True), starts=[start(0)])).rows[0].tokens


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (plan(Row(3, 1, emit=False)), "holds no sequence"),
        (plan(released=[0]), "holds no sequence"),
        (plan(Row(0, 2, emit=False), Row(0, 3, emit=True), starts=[start(0)]), "two rows of one slot"),
        (plan(starts=[start(99)]), "not free"),
        (plan(starts=[start(0), start(0)]), "not free"),
        (plan(starts=[start(0, num_computed=5)]), "5 of 5 tokens computed"),
        (plan(starts=[start(0, count=900)]), "0 of 900 tokens"),
        (plan(Row(0, 6, emit=True), starts=[start(0)]), "can't compute"),
        (plan(Row(0, 17, emit=False), starts=[start(0, count=30)]), "has 1 blocks"),
        (plan(Row(0, 3, emit=True), starts=[start(0)]), "can't emit"),
        (plan(starts=[start(0)], appends=[BlockAppend(0, 0, [10**6])]), "can't take the blocks"),
        (
            plan(starts=[start(0)], appends=[BlockAppend(0, 1, [8])]),
            "no KV group 1: this executor has 1",
        ),
        (plan(starts=[msgspec.structs.replace(start(0), blocks=[[7], [7]])]), "has 2 KV groups"),
        (plan(Row(0, 5, True, (3,)), starts=[start(0)]), "draft of 1 tokens.* executor verifies 0"),
        (plan(starts=[drawn_by(bias={199: 1.0})]), "a token outside 0 … 198"),
        (plan(starts=[drawn_by(held_back=(-1,))]), "a token outside 0 … 198"),
        (plan(starts=[drawn_by(bias=dict.fromkeys(range(1025), 1.0))]), "more than 1024 tokens"),
        (
            plan(starts=[msgspec.structs.replace(drawn_by(num_prompt_logprobs=0), num_computed=2)]),
            "2 tokens computed, which nobody has scored",
        ),
        (plan(starts=[drawn_by(allowed=b"1234")]), "a sequence's mask has 4 bytes, not 28"),
    ],
)
def test_a_plan_that_breaks_the_protocol_is_refused(
    executor: Executor, broken: StepPlan, message: str
) -> None:
    executor.submit(broken)
    with pytest.raises(PlanError, match=message):
        executor.collect()
