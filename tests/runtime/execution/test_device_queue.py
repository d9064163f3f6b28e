"""The forward pass in its own thread: masks, errors, progress, sleep, and the end."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from millrace_runtime.execution import device_queue
from millrace_runtime.execution.device_queue import open_queue
from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Sleep, Wake
from millrace_runtime.protocol.sampling import Sampling, count_mask_bytes
from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED, Row, RowResult, SlotStart, StepPlan

VOCABULARY = 199


@pytest.fixture(params=["auto", "torch"])
def executor(
    request: pytest.FixtureRequest, make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> LocalExecutor:
    executor: LocalExecutor = make_driver(make_model(), kernels=request.param).executor
    return executor


def masked_plan(step: int, *temperatures: float, masked: tuple[int, ...] = (), seed: int = 0) -> StepPlan:
    """Start a sequence of the same prompt in each slot, and draw once."""
    tokens = pack_tokens([3, 1, 4])
    starts = [
        SlotStart(slot, step, tokens, 0, [[slot]], Sampling(temperature=value, seed=seed), 3)
        for slot, value in enumerate(temperatures)
    ]
    rows = [Row(slot, 3, emit=True, is_masked=slot in masked) for slot in range(len(temperatures))]
    return StepPlan(step, list(range(len(temperatures))) if step else [], starts, [], rows)


def mask(*allowed: int) -> bytes:
    return sum(1 << token for token in allowed).to_bytes(count_mask_bytes(VOCABULARY), "little")


def draw(executor: LocalExecutor, plan: StepPlan, masks: bytes = b"") -> list[RowResult]:
    executor.submit(plan)
    if masks:
        executor.provide_masks(plan.step, memoryview(masks))
    return executor.collect().rows


def test_a_mask_binds_its_own_row_and_no_other(executor: LocalExecutor) -> None:
    free = draw(executor, masked_plan(0, 0.0, 0.0))
    best = free[0].tokens[0]
    others = [token for token in range(VOCABULARY) if token != best]
    first, second = draw(executor, masked_plan(1, 0.0, 0.0, masked=(1,)), mask(*others))
    assert first.tokens == [best]
    assert second.tokens != [best]
    both = draw(executor, masked_plan(2, 0.0, 0.0, masked=(0, 1)), mask(198) + mask(0, best))
    assert [row.tokens for row in both] == [[198], [best]]


def test_no_draw_leaves_its_mask_whatever_the_temperature(executor: LocalExecutor) -> None:
    drawn = set()
    for step in range(30):
        plan = masked_plan(step, 5.0, masked=(0,), seed=step)
        [row] = draw(executor, plan, mask(31, 32, 198))
        drawn |= set(row.tokens)
    assert drawn == {31, 32, 198}


def test_a_fixed_mask_binds_every_draw_beside_the_steps_own(executor: LocalExecutor) -> None:
    sampling = Sampling(temperature=5.0, allowed=mask(31, 32, 198), bias={31: -torch.inf})
    start = SlotStart(0, 0, pack_tokens([3, 1, 4]), 0, [[0]], sampling, 3)
    plan = StepPlan(0, [], [start], [], [Row(0, 3, emit=True, is_masked=True)])
    [row] = draw(executor, plan, mask(5, 31, 32))
    assert row.tokens == [32]
    drawn = {
        row.tokens[0]
        for step in range(1, 13)
        for row in draw(executor, StepPlan(step, [], [], [], [Row(0, 1, emit=True)]))
    }
    assert drawn == {32, 198}


def test_a_mask_that_allows_nothing_is_a_fault_of_its_row(executor: LocalExecutor) -> None:
    free = draw(executor, masked_plan(0, 0.0, 0.0))
    first, second = draw(executor, masked_plan(1, 0.0, 1.0, masked=(1,)), mask())
    assert first.tokens == free[0].tokens
    assert second.tokens == []
    assert second.fault == FAULT_NOTHING_ALLOWED


def test_a_step_without_its_masks_is_refused_not_awaited(executor: LocalExecutor) -> None:
    executor.submit(masked_plan(0, 0.0, masked=(0,)))
    with pytest.raises(PlanError, match="wants 28 bytes of masks, not 4"):
        executor.provide_masks(0, memoryview(b"1234"))
    with pytest.raises(PlanError, match="step 7 waits for no masks"):
        executor.provide_masks(7, memoryview(mask(1)))
    with pytest.raises(PlanError, match="step 0 has no masks: provide them for its 1 draws"):
        executor.collect()
    with pytest.raises(PlanError, match="step 0 has no masks"):
        executor.wait(0)
    executor.provide_masks(0, memoryview(mask(9)))
    assert executor.collect().rows[0].tokens == [9]  # the step was not lost


def test_submit_does_not_wait_and_a_step_is_seen_to_come_forward(executor: LocalExecutor) -> None:
    gate, reached = threading.Event(), threading.Event()
    run = executor._runner.run

    def held(*arguments: Any, **named: Any) -> Any:
        reached.set()
        assert gate.wait(10)
        return run(*arguments, **named)

    executor._runner.run = held  # type: ignore[method-assign]
    executor.submit(masked_plan(0, 0.0))
    assert reached.wait(10)
    assert not executor.wait(0.01)
    before = executor.progress
    gate.set()
    assert executor.wait(10)
    assert executor.progress >= before + 3  # two layers, or their operations, and the draw
    assert executor.collect().rows[0].tokens
    assert executor.wait(0)  # with nothing in flight there is nothing to wait for


def test_seconds_are_the_devices_own(executor: LocalExecutor) -> None:
    executor.submit(masked_plan(0, 0.0, masked=(0,)))
    time.sleep(0.3)
    executor.provide_masks(0, memoryview(mask(5)))
    time.sleep(0.1)
    assert 0 < executor.collect().seconds < 0.3


def test_what_fails_in_the_thread_is_raised_by_collect(executor: LocalExecutor) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    executor._runner.run = fail  # type: ignore[method-assign]
    executor.submit(masked_plan(0, 0.0, masked=(0,)))
    executor.provide_masks(0, memoryview(mask(5)))
    with pytest.raises(RuntimeError, match="out of memory"):
        executor.collect()


class Event:
    """CUDA's: a part that has not run yet has no time."""

    def __init__(self) -> None:
        self.has_run = False

    def synchronize(self) -> None:
        self.has_run = True

    def elapsed_time(self, end: "Event") -> float:
        if not end.has_run:
            raise RuntimeError("CUDA error: device not ready")
        return 2.0


def test_a_step_that_draws_nothing_is_awaited_before_its_time_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_queue, "_cuda_mark", Event)
    stopwatch = device_queue.Stopwatch(torch.device("cuda"))
    stopwatch.mark()
    stopwatch.mark()
    assert stopwatch.seconds() == 0.002


@pytest.mark.parametrize("count", [1, 2])
def test_the_thread_computes_with_as_many_threads_as_were_set(count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        opened = open_queue(torch.device("cpu"))
        torch.set_num_threads(3 - count)  # a later setting of this thread is not the queue's
        assert opened.submit(torch.get_num_threads).result() == count
    finally:
        torch.set_num_threads(before)


def test_sleep_gives_the_memory_back_and_wake_serves_again(executor: LocalExecutor) -> None:
    tokens = draw(executor, masked_plan(0, 0.0))[0].tokens
    with pytest.raises(PlanError, match="sequences are on the device"):
        executor.control(Sleep())
    executor.submit(StepPlan(1, [0], [], [], []))
    with pytest.raises(PlanError, match="1 steps are in flight"):
        executor.control(Sleep())
    executor.collect()
    caches = [weakref.ref(cache.data) for cache in executor._runner.kv_caches]
    executor.control(Sleep())
    gc.collect()
    assert [cache() for cache in caches] == [None, None]
    with pytest.raises(PlanError, match="wake it"):
        executor.submit(masked_plan(0, 0.0))
    executor.control(Wake())
    assert draw(executor, masked_plan(0, 0.0))[0].tokens == tokens


def test_the_thread_ends_with_its_executor(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    executor = make_driver(make_model()).executor
    draw(executor, masked_plan(0, 0.0))
    [thread] = executor._queue._threads
    del executor
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


_LEAVES_A_STEP = """
import sys
from pathlib import Path
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.settings import ExecutionSettings
from tests.runtime.execution.test_device_queue import masked_plan

executor = build_executor(ExecutionSettings(Path(sys.argv[1]), device="cpu", max_model_length=64))
executor.submit(masked_plan(0, 0.0, masked=(0,)))
"""


@pytest.mark.slow
def test_a_step_without_masks_does_not_keep_the_interpreter(make_model: Callable[..., Path]) -> None:
    subprocess.run([sys.executable, "-c", _LEAVES_A_STEP, str(make_model())], check=True, timeout=60)
