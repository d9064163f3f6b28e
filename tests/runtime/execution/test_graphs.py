"""Recorded decode steps: the GPU's path in Triton's interpreter, with a tape instead of CUDA's graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from millrace_fit.plan import MOST_ROWS, choose_sizes
from millrace_kernels.device_kernels import select_triton
from millrace_kernels.sampling.columns import Sampled
from millrace_runtime.execution.errors import PlanError, is_out_of_memory
from millrace_runtime.execution.graphs import DecodeInputs, Graph, Graphs
from millrace_runtime.protocol.executor import Forget, Record, Sleep, Wake
from millrace_runtime.protocol.step import RowResult, StepSize
from tests.runtime.execution.conftest import Driver
from tests.runtime.execution.tape import CountingRecorder, prompt

pytestmark = pytest.mark.reads("kernels", "tests/runtime")

MakeModel = Callable[..., Path]
TOP = 3
SPOILT = 198
"""A token that none of the tests draws."""


LENGTHS = [40, 5, 17]
"""The first one's keys are two spans."""


def generate(
    driver: Driver, steps: int, record_at: dict[int, int], second: dict[str, Any]
) -> list[list[RowResult]]:
    """Run sequences that begin and end one after the other; before some steps a size is recorded.

    `second` is how the second one draws.
    """
    results = []
    for step in range(steps):
        if step < len(LENGTHS):
            sampling = second if step == 1 else {}
            driver.start(step, prompt(LENGTHS[step], step), num_logprobs=TOP, **sampling)
        if step == steps - 3:
            driver.release(0)
        if step in record_at:
            driver.executor.control(Record(StepSize(record_at[step])))
        results.append(driver.advance(512))
    return results


@pytest.mark.parametrize(
    "second",
    [
        {"temperature": 0.9, "seed": 1, "min_p": 0.01},
        {"temperature": 0.9, "seed": 1, "top_p": 0.9},
        {"temperature": 0.0, "frequency_penalty": 3.0},
        {"temperature": 0.0, "repetition_penalty": 1.5, "bias": {7: 3.0}, "allowed": b"\xfe" * 28},
        {"temperature": 0.9, "seed": 1, "min_tokens": 5, "held_back": tuple(range(100))},
    ],
    ids=["plain", "cut", "penalised", "changed", "held back at first"],
)
def test_recorded_steps_give_the_same_tokens_as_others(
    make_model: MakeModel, graphs: CountingRecorder, second: dict[str, Any]
) -> None:
    """Of three rows in a graph of four one pads; later two are left. Draws are part of the graph."""
    path = make_model()
    launched = generate(Driver(graphs.open(path)), 9, {}, second)
    executor, num_draws = graphs.open(path, 2, 4), 0
    draw = executor._runner.sampler.draw

    def count(*asked: Any) -> Sampled:
        nonlocal num_draws
        num_draws += 1
        return draw(*asked)

    executor._runner.sampler = executor._runner.sampler._replace(draw=count)
    mine = generate(Driver(executor), 9, {4: 4, 5: 2}, second)
    assert graphs.num_recorded == 2
    assert graphs.num_repeated == 5
    assert num_draws == 4
    for ours, theirs in zip(mine, launched, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.tokens == other.tokens
            for a, b in zip(one.logprobs, other.logprobs, strict=True):
                assert a.drawn == pytest.approx(b.drawn, abs=1e-4)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, where the interpreter subtracts a NaN
def test_a_row_with_a_nan_fails_alone_in_a_repeated_graph(
    make_model: MakeModel, graphs: CountingRecorder
) -> None:
    """Its last prompt token's embedding is NaN. Its neighbours draw as beside a row that is well."""
    path = make_model(num_hidden_layers=1)
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][SPOILT] = torch.nan
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    drawn = []
    for last in (SPOILT, 3):
        driver = Driver(graphs.open(path, 4))
        driver.executor.control(Record(StepSize(4)))
        driver.start(0, prompt(9, 0))
        driver.start(1, [5, 6, last], temperature=0.9, seed=1)
        driver.start(2, prompt(5, 2), temperature=0.9, seed=2, top_p=0.9)
        driver.run({0: 9, 1: 2, 2: 5})
        results = driver.run({0: 1, 1: 1, 2: 1})
        is_spoilt = last == SPOILT
        assert [row.fault and "not finite" in row.fault for row in results] == [None, is_spoilt or None, None]
        assert [len(row.tokens) for row in results] == [1, int(not is_spoilt), 1]
        driver.release(1)
        drawn.append([row.tokens for row in (results[0], results[2], *driver.advance(1))])
    assert drawn[0] == drawn[1]
    assert not any([SPOILT] in one for one in drawn)
    assert graphs.num_repeated == 4


def test_rows_that_pad_change_no_keys(make_model: MakeModel, graphs: CountingRecorder) -> None:
    """Nor does recording: the next tokens would differ."""
    executor = graphs.open(make_model(), 4)
    driver = Driver(executor)
    driver.start(0, prompt(20, 0))
    driver.advance(512)
    caches = [one.data for one in executor._runner.kv_caches]
    before = [cache.clone() for cache in caches]
    executor.control(Record(StepSize(4)))
    assert all(map(torch.equal, before, caches))
    driver.advance(512)
    assert graphs.num_repeated == 1
    changed = [int((cache != old).any(dim=-1).sum()) for cache, old in zip(caches, before, strict=True)]
    assert changed == [2 * 2] * 2  # a key and a value, of two heads, in each layer


def test_what_was_recorded_is_gone_with_the_caches(make_model: MakeModel, graphs: CountingRecorder) -> None:
    executor = graphs.open(make_model(), 2)
    executor.control(Record(StepSize(2)))
    executor.control(Sleep())
    assert graphs.num_forgotten == 2  # once more when it began
    with pytest.raises(PlanError, match="wake it before recording"):
        executor.control(Record(StepSize(2)))
    executor.control(Wake())
    driver = Driver(executor)
    driver.start(0, prompt(20, 0))
    driver.advance(512)
    driver.advance(512)
    assert graphs.num_repeated == 0
    executor.control(Record(StepSize(2)))
    driver.advance(512)
    assert graphs.num_repeated == 1


def test_a_step_with_a_prompt_or_more_rows_is_computed_as_before(
    make_model: MakeModel, graphs: CountingRecorder
) -> None:
    executor = graphs.open(make_model(), 2)
    executor.control(Record(StepSize(2)))
    driver = Driver(executor)
    for slot in range(3):
        driver.start(slot, prompt(9, slot))
    driver.advance(5)
    driver.advance(512)
    driver.advance(512)
    assert graphs.num_repeated == 0
    driver.release(1)
    driver.advance(512)
    assert graphs.num_repeated == 1


def test_a_row_that_does_not_draw_yet_may_be_among_them(
    make_model: MakeModel, graphs: CountingRecorder
) -> None:
    """Its chunk of one token is not its prompt's last."""
    path = make_model()
    tokens = []
    for sizes in ((), (2,)):
        driver = Driver(graphs.open(path, *sizes))
        for size in sizes:
            driver.executor.control(Record(StepSize(size)))
        driver.start(0, prompt(9, 0))
        driver.start(1, prompt(9, 1))
        driver.run({0: 9, 1: 3})
        results = driver.run({0: 1, 1: 1})
        assert [len(result.tokens) for result in results] == [1, 0]
        tokens.append(results[0].tokens)
    assert tokens[0] == tokens[1]
    assert graphs.num_repeated == 1


def test_a_size_that_is_none_of_the_limits_is_refused(
    make_model: MakeModel, graphs: CountingRecorder
) -> None:
    with pytest.raises(PlanError, match=r"num_tokens=3.* can't be recorded"):
        graphs.open(make_model(), 2, 4).control(Record(StepSize(3)))
    assert graphs.num_recorded == 0


def test_all_sizes_write_to_one_place(make_model: MakeModel, graphs: CountingRecorder) -> None:
    executor = graphs.open(make_model(), 2, 4)
    for size in (4, 2):
        executor.control(Record(StepSize(size)))
    recorded = executor._runner._graphs
    wide, narrow = recorded.decode.find(4), recorded.decode.find(2)
    assert wide is not narrow
    assert wide.logits.data_ptr() == narrow.logits.data_ptr()
    assert graphs.num_recorded == 2


def test_a_far_larger_size_serves_no_step() -> None:
    recorded, sampler = Graphs(), select_triton().sampler.recorded
    assert sampler is not None
    for size in (8, 64):
        inputs = DecodeInputs(size, sampler, torch.device("cpu"))
        logits, sampled = torch.zeros(size, 4), torch.zeros(2, size)
        recorded.replace(StepSize(size), Graph(inputs, 1000, lambda: None, logits, sampled))
    found = {rows: recorded.decode.find(rows) for rows in (1, 8, 9, 31, 32, 64, 65)}
    assert {rows: graph and len(graph.logits) for rows, graph in found.items()} == {
        1: 8, 8: 8, 9: None, 31: None, 32: 64, 64: 64, 65: None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_memory_to_record_steps_are_computed_as_before(
    make_model: MakeModel, graphs: CountingRecorder, error: Exception
) -> None:
    executor = graphs.open(make_model(), 2)
    graphs.error = error
    executor.control(Record(StepSize(2)))
    assert executor.recorded == frozenset()
    driver = Driver(executor)
    driver.start(0, prompt(9, 0))
    driver.advance(512)
    assert driver.advance(512)[0].tokens


def test_another_error_of_a_recording_is_raised(make_model: MakeModel, graphs: CountingRecorder) -> None:
    graphs.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        graphs.open(make_model(), 2).control(Record(StepSize(2)))


def test_memory_that_ran_out_in_a_recording_is_seen_behind_the_error_of_its_end() -> None:
    error = RuntimeError("operation failed due to a previous error during capture")
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("operation failed"))


def test_a_size_that_is_forgotten_is_computed_as_before(
    make_model: MakeModel, graphs: CountingRecorder
) -> None:
    executor = graphs.open(make_model(), 2)
    executor.control(Record(StepSize(2)))
    executor.control(Forget(StepSize(2)))
    assert executor.recorded == frozenset()
    driver = Driver(executor)
    driver.start(0, prompt(9, 0))
    driver.advance(512)
    driver.advance(512)
    assert graphs.num_repeated == 0


def test_memory_that_no_graph_holds_any_more_is_not_entered_again(
    make_model: MakeModel, graphs: CountingRecorder
) -> None:
    executor = graphs.open(make_model(), 2, 4)
    for size in (4, 2):
        executor.control(Record(StepSize(size)))
    before = graphs.num_forgotten
    executor.control(Forget(StepSize(4)))
    assert graphs.num_forgotten == before
    executor.control(Forget(StepSize(2)))
    assert graphs.num_forgotten == before + 1


@pytest.mark.parametrize(
    ("max_rows", "sizes"),
    [(1, (1,)), (3, (1, 2, 3)), (32, (1, 2, 4, 8, 16, 24, 32)), (70, (1, 2, 4, 8, 16, 24, 32, 48, 64, 70))],
)
def test_sizes_end_with_the_most_rows(max_rows: int, sizes: tuple[int, ...]) -> None:
    assert choose_sizes(max_rows) == sizes


def test_a_step_of_very_many_rows_is_never_recorded() -> None:
    assert max(choose_sizes(4096)) == MOST_ROWS
    assert len(choose_sizes(4096)) < 40
