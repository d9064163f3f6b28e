"""`python -m benchmarks.engine`: microseconds a sequence and decode step; with `--turn`, of a whole turn.

A table, then one JSON line.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.engine.against import measure_against
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.errors import UsageError
from benchmarks.runtime.former import read_former_commit
from benchmarks.runtime.machine import describe_machine
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.messages import Generate, NewSequence
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import KvGroup, Limits, StepPlan, StepResult

LENGTH = 1024
BLOCK_SIZE = 16
LONGEST_PROMPT = 2 * BLOCK_SIZE - 1
STEPS = range(10, LENGTH - LONGEST_PROMPT + 1)
"""The first tenth is warming up; a sequence ends at LENGTH."""
BUDGET_MICROSECONDS = 8.0


class Cost(NamedTuple):
    """Median microseconds a sequence and step."""

    schedule: float
    slots: float
    commit: float

    @property
    def total(self) -> float:
        """The whole path."""
        return sum(self)


class NoModel:
    """The local executor's bookkeeping of slots, tables and results; every draw is the same token."""

    def __init__(self, limits: Limits) -> None:
        self._slots = SlotTable(limits, torch.device("cpu"))

    def run(self, plan: StepPlan) -> StepResult:
        """Return the plan's result."""
        applied = self._slots.apply(plan)
        return StepResult(plan.step, applied.answer([1] * len(applied.emits), {}), 0.0)


def measure(num_sequences: int, num_steps: int) -> Cost:
    """Decode so many sequences for so many steps."""
    limits = Limits(
        groups=(KvGroup(num_sequences * LENGTH // BLOCK_SIZE),),
        block_size=BLOCK_SIZE,
        num_slots=num_sequences,
        depth=1,
        max_model_length=LENGTH,
        vocabulary_size=1000,
        max_batched_tokens=BLOCK_SIZE * num_sequences,
    )
    scheduler, executor = Scheduler(limits), NoModel(limits)
    for number in range(num_sequences):
        scheduler.add(_request(number))
    samples = [_time_step(scheduler, executor) for _ in range(num_steps)]
    parts = zip(*samples[len(samples) // 10 :], strict=True)  # the first are prefill
    return Cost(*(statistics.median(part) / num_sequences * 1e6 for part in parts))


def _request(number: int) -> Generate:
    """Return a request whose prompt differs from each other one in its first token: nobody has a prefix hit.

    Lengths differ, so that in each step one of 16 sequences fills a block, and the next one has to be taken.
    """
    num_tokens = BLOCK_SIZE + number % BLOCK_SIZE
    return Generate(
        sequences=[NewSequence(number, Sampling())],
        prompt=pack_tokens(range(number, number + num_tokens)),
        max_tokens=LENGTH - num_tokens,
        stop_token_ids=[2, 3],
    )


def _time_step(scheduler: Scheduler, executor: NoModel) -> tuple[float, float, float]:
    began = time.perf_counter()
    plan = scheduler.schedule()
    scheduled = time.perf_counter()
    assert plan is not None
    result = executor.run(plan)
    ran = time.perf_counter()
    scheduler.commit(result)
    return scheduled - began, ran - scheduled, time.perf_counter() - ran


def publish_turns(num_turns: int, output: Path | None) -> int:
    """Measure whole turns, publish them, and return 1 if one misses its aim."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported: graphs compute once, on the CPU
    from benchmarks.engine.turn import report_turns  # noqa: PLC0415

    figures = report_turns(num_turns)
    origin = {"date": read_date(), "commit": read_commit(), "machine": describe_machine()}
    publish({"benchmark": "engine turn", **origin, "turns": num_turns, **figures}, output)
    return int(bool(figures["missed"]))


def main(argv: list[str]) -> int:
    """Measure, print, and return 1 over the budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    span = f"{STEPS.start} to {STEPS.stop - 1}"
    parser.add_argument("--steps", type=int, default=500, help=f"steps at each size, {span}")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--against", metavar="COMMIT", help="put ours over a former commit's, too")
    choice.add_argument(
        "--turn", action="store_true", help="measure whole turns instead, over a GPU that only counts"
    )
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.steps not in STEPS:
        parser.error(f"--steps {arguments.steps}: take {span}")
    try:
        former = None if arguments.against is None else read_former_commit(arguments.against)
    except UsageError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    if arguments.turn:
        return publish_turns(arguments.steps, arguments.output)
    costs = {count: measure(count, arguments.steps) for count in (32, 256)}
    print("sequences  schedule  slots  commit  total (µs a sequence and step)")
    for count, cost in costs.items():
        print(f"{count:9}  {cost.schedule:8.2f}  {cost.slots:5.2f}  {cost.commit:6.2f}  {cost.total:5.2f}")
    figures: dict[str, Any] = {
        f"step_microseconds_{count}": round(cost.total, 2) for count, cost in costs.items()
    }
    if former is not None:
        figures |= measure_against(former, arguments.steps) | {"over": former}
        print(f"over {former}: {figures['step_microseconds_256_over_itself']} with 256 sequences")
    origin = {"date": read_date(), "commit": read_commit(), "machine": describe_machine()}
    publish({"benchmark": "engine", **origin, "steps": arguments.steps, **figures}, arguments.output)
    return int(max(cost.total for cost in costs.values()) > BUDGET_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
