"""`python -m benchmarks.engine`: microseconds a sequence and decode step; a table, then one JSON line."""

import argparse
import statistics
import sys
import time
from typing import NamedTuple

import torch

from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.messages import Generate, NewSequence
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import KvGroup, Limits, StepPlan, StepResult

LENGTH = 1024
NUM_PROMPT_TOKENS = 16
STEPS = range(10, LENGTH - NUM_PROMPT_TOKENS + 1)
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
        (KvGroup(num_sequences * LENGTH // 16),), 16, num_sequences, 1, LENGTH, 1000, 16 * num_sequences
    )
    scheduler, executor = Scheduler(limits), NoModel(limits)
    for number in range(num_sequences):
        scheduler.add(_request(number))
    samples = [_time_step(scheduler, executor) for _ in range(num_steps)]
    parts = zip(*samples[len(samples) // 10 :], strict=True)  # the first are prefill
    return Cost(*(statistics.median(part) / num_sequences * 1e6 for part in parts))


def _request(number: int) -> Generate:
    return Generate(
        sequences=[NewSequence(number, Sampling())],
        prompt=pack_tokens(range(NUM_PROMPT_TOKENS)),
        max_tokens=LENGTH - NUM_PROMPT_TOKENS,
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


def main(argv: list[str]) -> int:
    """Measure, print, and return 1 over the budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    span = f"{STEPS.start} to {STEPS.stop - 1}"
    parser.add_argument("--steps", type=int, default=500, help=f"steps at each size, {span}")
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.steps not in STEPS:
        parser.error(f"--steps {arguments.steps}: take {span}")
    torch.set_num_threads(1)
    costs = {count: measure(count, arguments.steps) for count in (32, 256)}
    print("sequences  schedule  slots  commit  total (µs a sequence and step)")
    for count, cost in costs.items():
        print(f"{count:9}  {cost.schedule:8.2f}  {cost.slots:5.2f}  {cost.commit:6.2f}  {cost.total:5.2f}")
    figures = {f"step_microseconds_{count}": round(cost.total, 2) for count, cost in costs.items()}
    origin = {"date": read_date(), "commit": read_commit(), "machine": describe_machine()}
    publish({"benchmark": "engine", **origin, "steps": arguments.steps, **figures}, arguments.output)
    return int(max(cost.total for cost in costs.values()) > BUDGET_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
