"""The campaign on a GPU: its dry run, how it judges, and what its checks find."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

from benchmarks.gpu import experts, kernels, triton_facts
from benchmarks.gpu.__main__ import NO_DEVICE, PARTS, choose_parts, main
from benchmarks.gpu.arena import Arena, Guarded
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import OPERATIONS
from benchmarks.gpu.costs import Costs, Floor, count_pairs
from benchmarks.gpu.device import StandIn
from benchmarks.gpu.model import FAMILIES
from benchmarks.gpu.report import has_failed, render_part, render_step, render_tuned
from benchmarks.gpu.rows import Check, Figure, Row, at_least, at_most
from benchmarks.gpu.runner import PART_SECONDS, Outcome, Ran, read_record
from benchmarks.gpu.runs import find_first_difference
from benchmarks.gpu.timeline import measure_gaps, rank_kernels, read_operations, slim
from benchmarks.gpu.weights import LLAMA_8B, QWEN3_30B_A3B, TINY
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_kernels.step import Scoring
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import Row as PlannedRow
from millrace_runtime.protocol.step import SlotStart, StepPlan

pytestmark = pytest.mark.reads(
    "benchmarks/gpu",
    "benchmarks/record.py",
    "benchmarks/runtime",
    "development/ports.py",
    "kernels",
    "runtime/millrace_cli",
    "runtime/millrace_fit",
    "runtime/millrace_runtime",
    "testing/traffic.py",
)

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
SMALL = {"rows": 1, "inputs": 4, "width": 4}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(StandIn(), is_dry_run=True, folder=tmp_path, shared=tmp_path)


def run_python(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_is_what_the_product_launches(operation: str) -> None:
    """Its module is named by a text: a move of a kernel would show in a long test alone."""
    assert callable(OPERATIONS[operation].launch())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_the_dry_run_executes_every_step_of_a_part(tmp_path: Path, part: str) -> None:
    done = run_python("-m", "benchmarks.gpu", "--dry-run", "--part", part, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / f"{part}.json").read_text())
    assert found["is_dry_run"]
    assert found["device"]["name"].startswith("dry run")
    assert {"torch", "triton", "driver"} <= set(found["device"])
    assert found["checks"]["missed"] == 0
    assert [step["name"] for step in found["steps"]] == list(import_module(f"benchmarks.gpu.{part}").STEPS)
    for step in found["steps"]:
        assert step["outcome"] == "ran", step
        assert step["rows"] or step["name"].endswith("bits"), step
        assert f"\n{step['name']}" in f"\n{(tmp_path / f'{part}.txt').read_text()}"
    if part == "trace":
        trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
        assert {event["name"] for event in trace["traceEvents"]} == {f"step {number}" for number in range(10)}


BAD_STEPS = """
import os, time
from benchmarks.gpu.rows import Check, Figure
def good(bench):
    yield Check("good", holds=True)
def raises(bench):
    yield Figure("told before", 1.0, "ms")
    raise RuntimeError("an injected error")
def dies(bench):
    yield Check("told before", holds=True)
    os._exit(3)
def hangs(bench):
    yield Check("told before", holds=True)
    time.sleep(600)
STEPS = {"raises": raises, "dies": dies, "hangs": hangs, "good": good}
"""
RUN_BAD_STEPS = """
import json, sys
from pathlib import Path
from benchmarks.gpu import runner
runner.STEP_SECONDS = 3
if __name__ == "__main__":
    ran = runner.run_steps("bad_steps", ["raises", "dies", "hangs", "gone", "good"], Path(sys.argv[1]),
                           is_dry_run=True, on_step=lambda step: None)
    print(json.dumps([step.to_json() for step in ran]))
"""


@pytest.mark.slow
def test_a_step_that_fails_stops_no_other_and_keeps_what_it_told(tmp_path: Path) -> None:
    (tmp_path / "bad_steps.py").write_text(BAD_STEPS)
    script = tmp_path / "run_bad_steps.py"
    script.write_text(RUN_BAD_STEPS)
    done = run_python(str(script), str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    raises, dies, hangs, gone, good = json.loads(done.stdout)
    assert raises["outcome"] == "failed"
    assert "an injected error" in raises["error"]
    assert (dies["outcome"], dies["error"]) == ("failed", "its process ended with 3")
    assert hangs["outcome"] == "overdue"
    assert gone["outcome"] == "failed"
    assert "KeyError" in gone["error"]
    assert good["outcome"] == "ran"
    assert [row["name"] for row in raises["rows"] + dies["rows"] + hangs["rows"]] == ["told before"] * 3


def test_without_a_device_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a device")
    assert main([]) == NO_DEVICE
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith("no CUDA device to measure (")


@pytest.mark.parametrize(
    ("minutes", "parts"),
    [
        (15, ["quantized", "families", "replica", "speed", "model", "trace"]),
        (9, ["quantized", "families", "speed", "trace"]),
        (3, ["speed", "model", "trace"]),
        (0.1, []),
    ],
)
def test_few_minutes_are_for_the_newest_parts(minutes: float, parts: list[str]) -> None:
    assert choose_parts(minutes) == parts


def test_all_parts_together_fit_into_the_time_of_a_lent_machine() -> None:
    assert sum(PARTS.values()) <= 25 * 60
    assert max(PARTS.values()) <= PART_SECONDS


def test_each_carried_wheel_has_its_locked_version() -> None:
    carried = (ROOT / "benchmarks" / "gpu" / "requirements.txt").read_text().splitlines()
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in carried if not line.startswith("#") and line not in locked] == []


def test_the_page_names_every_part_and_every_family() -> None:
    page = (ROOT / "benchmarks" / "gpu" / "README.md").read_text()
    assert [part for part in PARTS if f"`{part}`" not in page] == []
    assert [family for family in FAMILIES if f"`{family}`" not in page] == []


@pytest.mark.parametrize("shapes", [experts.REAL, experts.DRY])
def test_experts_are_checked_by_each_kind_of_router(shapes: tuple[dict[str, Any], ...]) -> None:
    made = [experts.make_experts(Arena(CPU), torch.float32, **shape | SMALL) for shape in shapes]
    routings = [call.arguments[5] for call in made]
    assert {routing.scoring for routing in routings} == set(Scoring)
    assert {routing.is_normalised for routing in routings} == {True, False}


def test_rows_of_a_draft_have_one_table(bench: Bench) -> None:
    """And the launcher's own numbers of slots say so: `plan_attention` finds them by their tables."""
    make, shape = OPERATIONS["paged_attention"].make, OPERATIONS["paged_attention"].shapes.dry[-1]
    tables = make(Arena(bench.where), torch.float32, **shape).arguments[4]
    assert shape["draft"] == 2
    assert torch.equal(tables[0], tables[2])
    assert not torch.equal(tables[2], tables[3])


def test_with_one_device_two_workers_are_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = import_module("benchmarks.gpu.workers")
    monkeypatch.setattr(StandIn, "count", lambda _: 1)
    rows = [row.name for step in workers.STEPS.values() for row in step(bench)]
    assert rows == ["left out: needs two devices"]


def test_too_few_minutes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--minutes", "0.1"])
    assert "--minutes 0.1: the shortest part takes 15 s" in capsys.readouterr().err


@pytest.mark.slow
def test_the_machine_needs_no_more_than_the_readme_says() -> None:
    parts = ", ".join(f"benchmarks.gpu.{part}" for part in PARTS if part not in ("replica", "workers"))
    heavy = ("tokenizers", "safetensors", "pydantic", "fastapi", "jinja2", "orjson", "prometheus_client")
    code = f"import sys, {parts}, benchmarks.gpu.child; print([m for m in {heavy} if m in sys.modules])"
    done = run_python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("value", "aim", "holds"),
    [
        (0.85, at_least(0.85), True),
        (0.849, at_least(0.85), False),
        (0.03, at_most(0.03), True),
        (0.031, at_most(0.03), False),
        (float("nan"), at_least(0.0), False),
        (float("nan"), at_most(1.0), False),
    ],
)
def test_an_aim_is_judged_from_its_number(value: float, aim: Any, *, holds: bool) -> None:
    assert Figure("figure", value, "", aim).to_json()["holds"] is holds


def ran(*rows: Row, outcome: Outcome = Outcome.RAN) -> Ran:
    return Ran("step", outcome, 1.0, [row.to_json() for row in rows])


def test_a_missed_aim_is_told_and_fails_nothing() -> None:
    step = ran(Figure("share", 0.5, "", at_least(0.85)), Figure("time", 3.0, "ms"), Check("same", holds=True))
    assert not has_failed([step])
    found = render_part({}, [step])
    assert (found["aims"], found["checks"]) == ({"held": 0, "missed": 1}, {"held": 1, "missed": 0})
    assert any("aim >= 0.85: MISSED" in line for line in render_step(step))


@pytest.mark.parametrize(
    "step", [ran(Check("same", holds=False, facts={"row": 3})), ran(outcome=Outcome.OVERDUE)]
)
def test_a_failed_check_and_a_step_that_did_not_end_fail_the_run(step: Ran) -> None:
    assert has_failed([ran(), step])


def test_a_failed_check_is_shown_with_its_facts() -> None:
    lines = list(render_step(ran(Check("same", holds=False, facts={"row": 3}), Check("other", holds=True))))
    assert lines[0].endswith("1 of 2 checks hold")
    assert lines[1] == "  FAILED same: row 3"
    assert len(lines) == 2


def test_a_record_that_was_cut_off_keeps_its_whole_lines(tmp_path: Path) -> None:
    record = tmp_path / "record"
    row = Check("same", holds=True).to_json()
    record.write_text(f'{json.dumps({"row": row})}\n{json.dumps({"tuned": {"k": {"1": "c"}}})}\n{{"ro')
    step = read_record("step", record, None, 9.0)
    assert (step.rows, step.outcome, step.error) == ([row], Outcome.OVERDUE, "it was ended after 9 s")
    assert render_tuned([step]) == {"step": {"k": {"1": "c"}}}


def check(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Any], launcher: Callable[..., Any]
) -> list[Check]:
    """The rows of a check of `rms_norm`, launched like this."""
    operation = replace(OPERATIONS["rms_norm"], launch=lambda: launcher)
    monkeypatch.setitem(kernels.OPERATIONS, "rms_norm", operation)
    rows: Iterator[Any] = kernels.over_cases(kind, "rms_norm", bench)
    return list(rows)


def add_a_little(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return rms_norm_reference(x, weight, epsilon) + 0.1


def write_into_the_input(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    output = rms_norm_reference(x, weight, epsilon)
    x[0, 0] += 1.0
    return output


def write_past_the_output(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    output = torch.empty(x.shape, dtype=x.dtype)
    output.copy_(rms_norm_reference(x, weight, epsilon))
    torch.as_strided(output, (1,), (1,), output.storage_offset() + output.numel()).zero_()
    return output


def leave_a_hole(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    output = torch.empty(x.shape, dtype=x.dtype)
    output[:, :-1] = rms_norm_reference(x, weight, epsilon)[:, :-1]
    return output


def read_past_the_weight(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = torch.as_strided(weight, (weight.shape[0] + 1,), (1,))
    return rms_norm_reference(x, wide[1:], epsilon)


def depend_on_the_batch(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    output = rms_norm_reference(x, weight, epsilon)
    return output * (1 + 2.0**-7 * (x.shape[0] > 1))


def raise_an_error(*_: Any) -> torch.Tensor:
    raise ValueError("too much shared memory")


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        (kernels.check_agreement, add_a_little),
        (kernels.check_agreement, raise_an_error),
        (kernels.check_memory, write_into_the_input),
        (kernels.check_memory, write_past_the_output),
        (kernels.check_memory, leave_a_hole),
        (kernels.check_memory, read_past_the_weight),
        (kernels.check_bits, depend_on_the_batch),
    ],
)
def test_what_is_wrong_with_a_kernel_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: Any, launcher: Any
) -> None:
    assert {row.holds for row in check(bench, monkeypatch, kind, launcher)} == {False}


@pytest.mark.parametrize("kind", [kernels.check_agreement, kernels.check_memory, kernels.check_bits])
def test_a_kernel_that_is_right_passes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Any]
) -> None:
    assert all(row.holds for row in check(bench, monkeypatch, kind, rms_norm_reference))


def test_zeros_are_not_within_the_bounds_of_small_numbers() -> None:
    small = torch.full((4,), 1e-3)
    assert not kernels.compare("case", torch.zeros(4), small, 2e-2).holds
    assert kernels.compare("case", small.clone(), small, 2e-2).holds


def test_what_is_allocated_inside_a_guard_is_poisoned_and_what_is_filled_is_not() -> None:
    with Guarded(Arena(CPU)):
        empty, zeros, integers = torch.empty(3), torch.zeros(3), torch.empty(2, dtype=torch.int32)
    assert empty.isnan().all()
    assert not zeros.any()
    assert (integers == 0x5A5A5A5A).all()


def test_the_costs_are_those_of_eight_billion_weights() -> None:
    costs = Costs.of(LLAMA_8B)
    weights = costs.layer_weights + costs.head_weights
    assert weights + costs.head_weights == pytest.approx(8.03e9, rel=1e-3)  # with the embedding
    assert costs.step_bytes([1000, 24]) == 2 * weights + 1024 * 131072
    assert costs.flops(1, 0, 1) == 2 * weights


def test_of_a_mixture_the_experts_count_that_tokens_choose() -> None:
    costs = Costs.of(QWEN3_30B_A3B)
    experts = 128 * costs.expert_weights
    assert costs.layer_weights + 2 * costs.head_weights + experts == pytest.approx(30.5e9, rel=2e-3)
    beside = costs.layer_weights + costs.head_weights
    assert costs.step_bytes([0]) == pytest.approx(2 * (beside + 8 * costs.expert_weights), rel=1e-9)
    assert costs.step_bytes([0] * 1000) == pytest.approx(2 * (beside + experts), rel=1e-9)
    assert costs.flops(1, 0, 1) == 2 * (beside + 8 * costs.expert_weights)


def test_pairs_are_counted() -> None:
    assert [count_pairs(1, 7), count_pairs(3, 3), count_pairs(2, 5)] == [7, 6, 9]


def test_the_floor_follows_each_sequence() -> None:
    costs = Costs.of(TINY)
    start = SlotStart(2, 0, b"", 4, [[0]], Sampling(), 8)
    by_bytes, by_flops = Floor(costs, 1.0, 1e30), Floor(costs, 1e30, 1.0)
    for floor in (by_bytes, by_flops):
        floor.add(StepPlan(0, [], [start], [], [PlannedRow(2, 3, emit=False)]))
        floor.add(StepPlan(1, [], [], [], [PlannedRow(2, 1, emit=True)]))
        floor.add(StepPlan(2, [2], [], [], []))
    assert by_bytes.seconds == costs.step_bytes([7]) + costs.step_bytes([8])
    assert by_flops.seconds == costs.flops(3, 5 + 6 + 7, 0) + costs.flops(1, 8, 1)


def event(category: str, name: str, begin: float, duration: float, correlation: int | None = None) -> Any:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": duration, "pid": 1, "tid": 2,
            "args": args}  # fmt: skip


TWO_IN_FLIGHT = [
    event("user_annotation", "step 0", 0, 10),
    event("user_annotation", "step 1", 10, 10),  # submitted while step 0 still runs
    event("user_annotation", "other", 11, 1),
    event("cuda_runtime", "launch", 1, 1, 7),
    event("cuda_driver", "launch", 3, 1, 8),
    event("cuda_runtime", "launch", 12, 1, 9),
    event("kernel", "a", 100, 20, 7),
    event("kernel", "b", 130, 20, 8),
    event("gpu_memcpy", "copy", 150, 5),  # whose launch was not recorded
    event("kernel", "a", 160, 40, 9),
    event("cpu_op", "aten::mm", 3, 1),
]


def test_an_operation_belongs_to_the_step_that_launched_it() -> None:
    found = read_operations(TWO_IN_FLIGHT)
    assert [(one.step, one.name) for one in found] == [(0, "a"), (0, "b"), (0, "copy"), (1, "a")]


def test_gaps_are_shares_of_the_time_between_steps_and_within_them() -> None:
    gaps = measure_gaps(read_operations(TWO_IN_FLIGHT))
    assert gaps.period == 60
    assert gaps.between == pytest.approx(5 / 60)
    assert gaps.within == pytest.approx(10 / 60)


def test_kernels_are_ranked_by_their_time() -> None:
    ranked = rank_kernels(read_operations(TWO_IN_FLIGHT), 2)
    assert [tuple(share) for share in ranked] == [("a", 2, 60.0), ("b", 1, 20.0)]


def test_a_slim_trace_keeps_steps_launches_and_the_devices_work() -> None:
    kept = slim(TWO_IN_FLIGHT)
    assert {one["cat"] for one in kept} == {
        "user_annotation", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy"
    }  # fmt: skip
    assert "other" not in {one["name"] for one in kept}
    assert not any("args" in one for one in kept)


def test_what_triton_knows_of_kernels_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = SimpleNamespace(num_warps=4, num_stages=3, shared=1024)
    compiled = SimpleNamespace(metadata=metadata, n_regs=80, n_spills=0)
    kernel_type = type("JITFunction", (SimpleNamespace,), {"__module__": "triton.runtime.jit"})
    plain = kernel_type(fn=len, device_caches={0: ({"key": compiled}, {})})
    tuning = kernel_type(fn=plain, configs=[1, 2], cache={(128,): "num_warps: 8"})
    module = ModuleType("millrace_kernels.made_up")
    vars(module).update(plain=plain, tuning=tuning, other=3)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert triton_facts.read_tuned() == {"tuning": {"(128,)": "num_warps: 8"}}
    variant = {"num_warps": 4, "num_stages": 3, "shared": 1024, "n_regs": 80, "n_spills": 0}
    found = triton_facts.read_kernels()
    assert (found["plain"], found["tuning"]) == ([variant], [variant])


@pytest.mark.parametrize(
    ("one", "other", "place"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None)]
)
def test_the_first_difference_is_found(one: list[int], other: list[int], place: int | None) -> None:
    assert find_first_difference(one, other) == place
