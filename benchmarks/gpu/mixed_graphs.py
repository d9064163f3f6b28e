"""Checks of recorded steps with prompts: graphs beside eager steps, and their memory."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Check, Figure, Row, at_most
from benchmarks.gpu.runs import DRY, MIXED, REAL, Work, compare_runs, start_sequences
from benchmarks.gpu.serving import Driver, Running, Served, record, serve
from benchmarks.gpu.weights import SMALL_LLAMA, TINY
from millrace_fit.plan import choose_mixed_sizes, choose_sizes
from millrace_runtime.protocol.step import StepPlan, StepResult

MOST_TOKENS = 256
NUM_BETWEEN = 2
"""Steps between the starts of two sequences."""


class Mixed(NamedTuple):
    """A run in which prompts come one after the other, beside sequences that decode."""

    sequences: list[Running]
    sizes: list[int]
    """The tokens of each step with a prompt."""
    num_graphs: int
    """How many of these were graphs."""
    num_compiled: int
    """Kernels that the recording and the steps after it compiled."""


class _MixedRun:
    """Runs steps one at a time, and notes the mixed ones."""

    def __init__(self, served: Served, work: Work, sizes: Sequence[int]) -> None:
        count = len(work.prompt_lengths)
        self.executor = served.open(count, count * -(-work.length // 16), MOST_TOKENS, mixed=sizes)
        self.driver, self._num_layers = Driver(self.executor), len(served.architecture.kv_shapes)
        self.sizes: list[int] = []
        self.num_graphs = self.num_compiled = 0

    def run(self, num_steps: int, chunk: int) -> None:
        for _ in range(num_steps):
            before = self.executor.progress
            plan = self.driver.submit(chunk)
            self._note(plan, self.driver.collect(), self.executor.progress - before)

    def _note(self, plan: StepPlan, result: StepResult, progress: int) -> None:
        self.num_compiled += result.num_compiled
        num_tokens = sum(row.num_tokens for row in plan.rows)
        if num_tokens > len(plan.rows):
            self.sizes.append(num_tokens)
            # An eager step counts its layers. A repetition counts once; a dry run's computes its layers too.
            self.num_graphs += progress - any(row.emit for row in plan.rows) != self._num_layers


def run_mixed(served: Served, work: Work, sizes: Sequence[int] = ()) -> Mixed:
    """Run the sequences of `work`. The graphs are recorded after the first one's prompt."""
    run = _MixedRun(served, work, sizes)
    for number in range(len(work.prompt_lengths)):
        start_sequences(run.driver, served, work, MIXED, [number])
        if number == 1:
            record(run.executor)
            run.num_compiled, run.sizes, run.num_graphs = 0, [], 0
        run.run(NUM_BETWEEN, work.chunk)
    while min(len(one.tokens) for one in run.driver.running.values()) < work.num_drawn:
        run.run(1, work.chunk)
    return Mixed([*run.driver.running.values()], run.sizes, run.num_graphs, run.num_compiled)


def check_mixed_graphs(bench: Bench) -> Iterator[Row]:
    """Compare mixed steps that are repeated from a graph with eager ones, token for token.

    In float32 they have padding: another algorithm of cuBLAS hardly changes such a sum. In bfloat16 each
    graph has exactly a step's tokens.
    """
    work, config = bench.sized(REAL, DRY), bench.sized(SMALL_LLAMA, TINY)
    for dtype in (torch.float32, torch.bfloat16):
        served = serve(bench, config, dtype, work.length)
        eager = run_mixed(served, work)
        usual = choose_mixed_sizes(bench.sized(MOST_TOKENS, 16))
        sizes = usual if dtype == torch.float32 else sorted(set(eager.sizes))
        graphs = run_mixed(served, work, sizes)
        name = f"mixed graphs, {str(dtype).removeprefix('torch.')}"
        yield from compare_runs(f"{name}, against eager", graphs.sequences, eager.sequences, work.num_drawn)
        facts = {"graphs": graphs.num_graphs, "mixed_steps": len(graphs.sizes), "eager": eager.num_graphs}
        is_each = graphs.num_graphs == len(graphs.sizes) > 0 == eager.num_graphs
        yield Check(f"{name}: each mixed step was a graph's", is_each, facts)
        yield Figure(f"kernels compiled, {name}", graphs.num_compiled, "", at_most(0))
    yield measure_memory(bench, served)


def measure_memory(bench: Bench, served: Served) -> Row:
    """Tell the memory of all sizes that a replica of 256 sequences records."""
    num_rows, mixed = bench.sized(256, 2), choose_mixed_sizes(bench.sized(512, 2))
    executor = served.open(num_rows, num_rows, mixed[-1], choose_sizes(num_rows), mixed)
    bench.device.give_back_unused()
    before = bench.device.free_bytes()
    record(executor)
    taken = (before - bench.device.free_bytes()) / 2**20
    return Figure(f"memory of {len(executor.limits.recordable)} sizes, decode and mixed", taken, "MiB")
