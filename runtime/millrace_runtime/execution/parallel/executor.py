"""An executor whose steps run on several workers together. It has no device itself."""

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from millrace_fit.kv_budget import Budget
from millrace_kernels.native.cores import count_threads
from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.host import measure_usable_memory
from millrace_runtime.execution.parallel.messages import (
    Allocate,
    Allocated,
    CacheRoom,
    Done,
    Loaded,
    LogLine,
    Masks,
    Measure,
    Recorded,
    Submit,
    WorkerArguments,
    write_settings,
)
from millrace_runtime.execution.parallel.worker_pool import WorkerPool
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.execution.speculation.proposer import PromptLookup
from millrace_runtime.execution.speculation.speculation import open_speculation
from millrace_runtime.protocol.executor import Command, Forget, Record
from millrace_runtime.protocol.step import StepPlan, StepResult

Answer = TypeVar("Answer", Loaded, CacheRoom, Allocated, Recorded)
Log = Callable[[str], None]
POLL_SECONDS = 0.25


def start_workers(settings: ExecutionSettings, count: int, log: Log) -> "ParallelExecutor":
    """Start `count` workers, each with its part of the model. Raises ModelError and WorkerError.

    `log` gets the lines of the first worker, and one about the common size of the caches.
    """
    host = _share_of_host(settings, count)
    # It stays until the end: NCCL's watchdog reads the file through which the workers met.
    folder = tempfile.TemporaryDirectory(prefix="millrace-workers-")
    values, meeting = write_settings(settings), (Path(folder.name) / "meeting").as_uri()
    arguments = [WorkerArguments(values, index, count, meeting, host) for index in range(count)]
    pool = WorkerPool(arguments, _environment(count))
    try:
        return ParallelExecutor(pool, _set_up(pool, settings, log), folder)
    except BaseException:
        pool.end()
        folder.cleanup()
        raise


def _set_up(pool: WorkerPool, settings: ExecutionSettings, log: Log) -> Allocated:
    """Have the workers load, and allocate the largest cache that fits everywhere. Return the first answer."""
    _await_all(pool, Loaded, log)
    host = _share_of_host(settings, pool.count)
    pool.broadcast(Measure(*host))
    rooms = _await_all(pool, CacheRoom, log)
    smallest = min(rooms, key=lambda room: room.num_blocks)
    log(f"each of {pool.count} workers has {smallest.line}")
    num_blocks = [min(counts) for counts in zip(*(room.num_blocks for room in rooms), strict=True)]
    pool.broadcast(Allocate(num_blocks, min(room.max_model_length for room in rooms)))
    allocated = _await_all(pool, Allocated, log)
    pool.watch()
    return allocated[0]


def _await_all(pool: WorkerPool, wanted: type[Answer], log: Log) -> list[Answer]:
    """Return every worker's answer, by number."""
    answers: dict[int, Answer] = {}
    while len(answers) < pool.count:
        for index, message in pool.receive(POLL_SECONDS):
            if isinstance(message, LogLine):
                log(message.line)
                continue
            assert isinstance(message, wanted), f"{message} came instead of {wanted.__name__}"
            answers[index] = message
    return [answers[index] for index in range(pool.count)]


def _ignore(_line: str) -> None:
    """Ignore a line: serving workers send none."""


def _share_of_host(settings: ExecutionSettings, count: int) -> Budget:
    """Return each worker's share of the host's memory for KV caches."""
    whole = measure_usable_memory(settings.text_memory_bytes)
    return Budget(whole.num_bytes // count, f"a {count}th of {whole.source}", whole.is_shared)


def read_num_threads(environment: Mapping[str, str]) -> int:
    """Return the threads of the outermost level: OpenMP takes a list, such as "4,2", one for each level."""
    first = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else os.cpu_count() or 1


def _environment(count: int) -> dict[str, str]:
    """Return the workers' environment: they share the cores, and communicate only on this machine."""
    limit = read_num_threads(os.environ)
    threads = max(1, count_threads(limit) // count)
    meeting = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {**meeting, **os.environ, "OMP_NUM_THREADS": str(threads)}


class ParallelExecutor:
    """Sends every plan to all workers. All have the same results, so only the first one sends them."""

    def __init__(
        self, pool: WorkerPool, allocated: Allocated, folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        self.limits, self.placement = allocated.limits, allocated.placement
        self._speculation = open_speculation(allocated.limits, PromptLookup())
        self._pool, self._folder = pool, folder
        self._num_in_flight = 0
        self._results: deque[StepResult] = deque()

    @property
    def progress(self) -> int:
        """The layers or operations that the workers have computed, and the draws."""
        return self._pool.progress

    def submit(self, plan: StepPlan) -> None:
        """Submit a plan. Raises PlanError when `depth` plans are uncollected, and WorkerError."""
        if self._num_in_flight >= self.limits.depth:
            raise PlanError(f"{self._num_in_flight} steps are in flight: collect one before submitting")
        self._num_in_flight += 1
        if self._speculation is not None:
            self._speculation.follow(plan)
        self._pool.broadcast(Submit(plan))

    def provide_masks(self, step: int, masks: memoryview) -> None:
        """Provide a step's masks. Raises WorkerError."""
        self._pool.broadcast(Masks(step, bytes(masks)))

    def wait(self, timeout_seconds: float) -> bool:
        """Wait up to a time for the oldest step. Return whether its result is there. Raises WorkerError."""
        until = time.monotonic() + timeout_seconds
        while self._num_in_flight and not self._results:
            left = until - time.monotonic()
            self._receive(max(0.0, left))
            if left <= 0:
                break
        return bool(self._results) or not self._num_in_flight

    def collect(self) -> StepResult:
        """Wait for the oldest step and return its result. Raises PlanError and WorkerError."""
        if not self._num_in_flight:
            raise PlanError("no step is in flight: submit one before collecting")
        while not self.wait(POLL_SECONDS):
            pass
        self._num_in_flight -= 1
        result = self._results.popleft()
        return result if self._speculation is None else self._speculation.offer(result)

    def control(self, command: Command) -> None:
        """Have every worker run a command. Raises PlanError with steps in flight, and WorkerError."""
        if self._num_in_flight:
            raise PlanError(f"{self._num_in_flight} steps are in flight: collect them before a command")
        self._pool.broadcast(command)
        if isinstance(command, Record):
            answers = _await_all(self._pool, Recorded, _ignore)
            if not all(answer.is_recorded for answer in answers):
                self._pool.broadcast(Forget(command.size))

    def check(self) -> None:
        """Raise WorkerError for a worker that has ended or is stopped."""
        self._receive(0)

    def end(self) -> None:
        """End the workers."""
        self._pool.end()
        self._folder.cleanup()

    def _receive(self, timeout_seconds: float) -> None:
        for _, message in self._pool.receive(timeout_seconds):
            assert isinstance(message, Done), f"{message} came while steps run"
            self._results.append(message.result)
        self._pool.check_silence()
