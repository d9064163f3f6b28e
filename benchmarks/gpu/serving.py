"""A model on a device behind the executor's own protocol, and a minimal scheduler that drives it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.weights import RandomWeights, build_model
from millrace_kernels.device_kernels import select_triton
from millrace_kernels.linear.format import Format
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, KvCache, KvFormat
from millrace_runtime.execution import model_runner
from millrace_runtime.execution.graphs import Repeat
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.model_runner import TensorRunner
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Architecture, Model
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Executor, Record
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import (
    BlockAppend,
    KvGroup,
    Limits,
    Placement,
    Row,
    SlotStart,
    StepPlan,
    StepResult,
    StepSize,
    TokenLogprobs,
)

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Served:
    """A model on a device, from which executors are made."""

    architecture: Architecture
    model: Model
    device: torch.device
    dtype: torch.dtype
    length: int
    """Tokens of the longest sequence."""
    is_stand_in: bool = False
    """Whether a CPU computes as a GPU would, by Triton's interpreter."""

    def open(
        self,
        num_slots: int,
        num_blocks: int,
        max_batched_tokens: int,
        recordable: Sequence[int] = (),
        mixed: Sequence[int] = (),
        *,
        kv: KvFormat = KvFormat.MODEL,
        max_draft: int = 0,
    ) -> LocalExecutor:
        """Return an executor. Its KV cache is full of random numbers: zeros would flatter the device.

        `recordable` are the numbers of rows whose decode steps `record` can record, and `mixed` the numbers
        of tokens of its steps with prompts.
        """
        limits = Limits(
            groups=tuple(KvGroup(num_blocks, window) for window in self.architecture.groups),
            block_size=BLOCK_SIZE,
            num_slots=num_slots,
            depth=2,
            max_model_length=self.length,
            vocabulary_size=self.architecture.vocabulary_size,
            max_batched_tokens=max_batched_tokens,
            max_draft=max_draft,
            max_draws=num_slots * (1 + max_draft),
            recordable=tuple(
                sorted((*map(StepSize, recordable), *(StepSize(one, is_mixed=True) for one in mixed)))
            ),
        )
        slots, fill = SlotTable(limits, self.device), partial(self._fill_cache, num_blocks, kv)
        placement = Placement(
            self.device.type, "a campaign's", str(self.dtype).removeprefix("torch."), "FromCheckpoint", 1
        )
        return LocalExecutor(self._open_runner(), slots, limits, self.device, fill, placement=placement)

    def _open_runner(self) -> TensorRunner:
        if not self.is_stand_in:
            return TensorRunner(self.model, self.device)
        # What a runner chooses by its device it chooses when it is made.
        with patch.multiple(model_runner, select_kernels=lambda _: select_triton(), MIN_GEMM_ROWS=0):
            return TensorRunner(self.model, self.device, recorder=StandInRecorder())

    def _fill_cache(self, num_blocks: int, kv: KvFormat) -> list[KvCache]:
        counts = [num_blocks] * len(self.architecture.groups)
        caches = allocate_cache(self.architecture, counts, self.dtype, self.device, kv)
        for cache in caches:
            if cache.scales is None:
                cache.data.normal_()
            else:  # as the bytes of integers below 64, or of float8 numbers below 0.12
                cache.data.view(torch.int8).random_(0, 32 if kv is KvFormat.FP8 else 64)
                cache.scales.fill_(1 / 32)
        return caches


class StandInRecorder:
    """Stands in for CUDA graphs: what would be repeated is computed again, into the same memory."""

    def __call__(self, compute: Callable[[], None]) -> Repeat:
        """Compute once, and again at each repetition."""
        compute()
        return compute

    def forget(self) -> None:
        """Nothing is shared."""


def record(executor: LocalExecutor) -> None:
    """Record all that can be, the largest first, as an engine does at rest."""
    for size in reversed(executor.limits.recordable):
        executor.control(Record(size))


def serve(
    bench: Bench, config: Mapping[str, Any], dtype: torch.dtype, length: int, form: Format | None = None
) -> Served:
    """Build a model on the device to measure, with weights that are drawn there, and rounded to a `form`."""
    architecture, model = build_model(config, RandomWeights(bench.where, dtype, bench.where, form), length)
    return Served(architecture, model, bench.where, dtype, length, bench.is_dry_run)


def serve_twice(
    bench: Bench, config: Mapping[str, Any], dtype: torch.dtype, length: int, form: Format | None = None
) -> tuple[Served, Served]:
    """Build a model on the device, and the same on the CPU in float32 as a replica without a GPU has it.

    With a `form` the device's is quantised, and the CPU has its widened weights.
    """
    architecture, model = build_model(config, RandomWeights(bench.where, dtype, CPU, form), length)
    _, exact = build_model(config, RandomWeights(CPU, torch.float32, CPU, form, is_widened=True), length)
    there = Served(architecture, model, bench.where, dtype, length, bench.is_dry_run)
    return there, Served(architecture, exact, CPU, torch.float32, length)


def random_tokens(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Return token ids, the same on each machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (count,), generator=generator).tolist()


@dataclass(slots=True)
class Running:
    """A sequence in a slot, as planned so far."""

    num_known: int
    num_computed: int
    blocks: list[int]
    """Of each KV group."""
    tokens: list[int] = field(default_factory=list)
    """What was drawn."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Driver:
    """Plans steps for sequences that stay: each step computes a chunk of every one's known tokens."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        count = executor.limits.groups[0].num_blocks  # as many in each
        self._num_groups = len(executor.limits.groups)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
        self._free: list[int] = order.tolist()
        self.running: dict[int, Running] = {}
        self._starts: list[SlotStart] = []
        self._step = 0

    def start(
        self,
        slot: int,
        prompt: Sequence[int],
        *,
        is_computed: bool = False,
        shared: Sequence[int] = (),
        **sampling: Any,
    ) -> None:
        """Place a sequence. `is_computed`: all but its last token is taken to be in the KV cache already.

        `shared` are full blocks of another sequence, which has the same tokens there: a prefix hit.
        """
        blocks = [*shared, *self._take(-(-len(prompt) // BLOCK_SIZE) - len(shared))]
        num_computed = len(prompt) - 1 if is_computed else len(shared) * BLOCK_SIZE
        parameters = Sampling(**({"temperature": 0.0} | sampling))
        self.running[slot] = Running(len(prompt), num_computed, blocks)
        packed = pack_tokens(prompt)
        tables = [blocks] * self._num_groups
        self._starts.append(SlotStart(slot, 0, packed, num_computed, tables, parameters, len(prompt)))

    def plan(self, chunk: int) -> StepPlan:
        """Return the next step: of each sequence at most `chunk` tokens, as many as the step may have."""
        left = self.executor.limits.max_batched_tokens
        rows: list[Row] = []
        appends: list[BlockAppend] = []
        for slot, one in self.running.items():
            count = min(chunk, one.num_known - one.num_computed, left)
            if count > 0:
                left -= count
                rows.append(self._advance(slot, one, count, appends))
        plan = StepPlan(self._step, [], self._starts, appends, rows)
        self._step, self._starts = self._step + 1, []
        return plan

    def _advance(self, slot: int, one: Running, count: int, appends: list[BlockAppend]) -> Row:
        one.num_computed += count
        self._make_room(slot, one.num_computed, appends)
        emits = one.num_computed == one.num_known
        one.num_known += emits
        return Row(slot, count, emits)

    def _make_room(self, slot: int, num_tokens: int, appends: list[BlockAppend]) -> None:
        one = self.running[slot]
        if (missing := -(-num_tokens // BLOCK_SIZE) - len(one.blocks)) > 0:
            blocks = self._take(missing)
            appends += [BlockAppend(slot, group, blocks) for group in range(self._num_groups)]
            one.blocks = one.blocks + blocks  # the first ones were given to the plan

    def verify(self, drafts: Mapping[int, tuple[int, ...]]) -> None:
        """Run a step in which each of these slots has a draft. No step may be in flight."""
        appends: list[BlockAppend] = []
        for slot, draft in drafts.items():
            self._make_room(slot, self.running[slot].num_known + len(draft), appends)
        rows = [Row(slot, 1, emit=True, draft=draft) for slot, draft in drafts.items()]
        self.executor.submit(StepPlan(self._step, [], [], appends, rows))
        self._step += 1
        for row in self.collect().rows:
            one = self.running[row.slot]
            one.num_computed, one.num_known = row.num_computed, row.num_computed + 1

    def submit(self, chunk: int = 1) -> StepPlan:
        """Submit the next step, and return its plan."""
        plan = self.plan(chunk)
        self.executor.submit(plan)
        return plan

    def collect(self) -> StepResult:
        """Collect the oldest step, and keep what it drew."""
        result = self.executor.collect()
        self.keep(result)
        return result

    def keep(self, result: StepResult) -> None:
        """Keep what a step drew."""
        for row in result.rows:
            one = self.running[row.slot]
            one.tokens += row.tokens
            one.logprobs += row.logprobs
            one.faults += [] if row.fault is None else [row.fault]

    def run(self, num_steps: int, chunk: int = 1, depth: int | None = None) -> list[StepResult]:
        """Run so many steps."""
        last = self._step + num_steps
        return self._pump(lambda: self._step < last, chunk, depth)

    def run_until_drawn(self, count: int, chunk: int, depth: int | None = None) -> list[StepResult]:
        """Run until each sequence has drawn so many tokens. The plans are the same for each depth."""
        wanted = {slot: one.num_known + count for slot, one in self.running.items()}
        known = self.running
        return self._pump(
            lambda: any(known[slot].num_known < enough for slot, enough in wanted.items()), chunk, depth
        )

    def _pump(self, wants_more: Callable[[], bool], chunk: int, depth: int | None) -> list[StepResult]:
        """Keep `depth` steps in flight, or as many as the executor allows."""
        depth = depth or self.executor.limits.depth
        results, num_in_flight = [], 0
        while (more := wants_more()) or num_in_flight:
            if more and num_in_flight < depth:
                self.submit(chunk)
                num_in_flight += 1
            else:
                results.append(self.collect())
                num_in_flight -= 1
        return results

    def _take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]
