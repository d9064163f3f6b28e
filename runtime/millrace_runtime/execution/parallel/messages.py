"""The messages between the engine and its workers, over a socket pair for each worker.

engine                       worker
   |  <-------- LogLine, Loaded |   the weights are there
   |  Measure ----------------> |   once all have loaded, because on CPUs they share the host's memory
   |  <--------------- CacheRoom |   the cache that fits on this worker
   |  Allocate ---------------> |   the cache that fits on every worker
   |  <--------------- Allocated |
   |  Submit, Masks ----------> |   to all
   |  <-------------------- Done |   from the first
   |  Record -----------------> |   to all
   |  <---------------- Recorded |   from all
   |  Forget -----------------> |   to all, if one had no memory for it: all must compute the same
   |  <------------------ Failed |   from any worker, at any time; then it ends
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace_fit.kv_budget import Budget
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.protocol.executor import Forget, Record, Sleep, Wake
from millrace_runtime.protocol.step import Limits, Placement, StepPlan, StepResult


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Report how large a KV cache fits."""

    host_bytes: int
    """This worker's share of the host's memory."""
    host_source: str
    """The limit behind it, in words for the log."""
    host_is_shared: bool
    """Whether other programs use this memory too."""


class Allocate(msgspec.Struct, frozen=True, tag="allocate"):
    """Allocate the KV cache."""

    num_blocks: list[int]
    """By KV group."""
    max_model_length: int


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Run a step."""

    plan: StepPlan


class Masks(msgspec.Struct, frozen=True, tag="masks"):
    """The masks of a submitted step."""

    step: int
    masks: bytes


ToWorker = Measure | Allocate | Submit | Masks | Sleep | Wake | Record | Forget


class LogLine(msgspec.Struct, frozen=True, tag="log"):
    """A line for the log."""

    line: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The weights are loaded."""


class CacheRoom(msgspec.Struct, frozen=True, tag="room"):
    """The KV cache that fits, in the units of every worker: a block has this worker's heads of its tokens."""

    num_blocks: list[int]
    """By KV group."""
    max_model_length: int
    line: str
    """The same in words for the log."""


class Allocated(msgspec.Struct, frozen=True, tag="allocated"):
    """The KV cache is allocated, and the worker accepts steps."""

    limits: Limits
    placement: Placement


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The oldest step's result."""

    result: StepResult


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """The worker has recorded, or has tried."""

    is_recorded: bool


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker ends."""

    reason: str
    is_model: bool
    """Whether the cause is the model or its settings, and not the worker."""


FromWorker = LogLine | Loaded | CacheRoom | Allocated | Done | Recorded | Failed


if TYPE_CHECKING:
    from millrace_runtime.execution.collective import Rank


class WorkerArguments(msgspec.Struct, frozen=True):
    """The worker's number, its settings, and its descriptors from the engine."""

    settings: dict[str, Any]
    """The fields of ExecutionSettings."""
    index: int
    count: int
    meeting: str
    """The URL in `Rank`."""
    host: Budget
    """This worker's share of the host's memory, before any has loaded."""
    engine_pid: int = 0
    socket_fd: int = -1
    exchange_fd: int = -1
    heartbeats_fd: int = -1

    def read_settings(self) -> ExecutionSettings:
        """Return the settings that `write_settings` wrote."""
        return ExecutionSettings(**(self.settings | {"model_path": Path(self.settings["model_path"])}))

    def read_rank(self) -> "Rank":
        """Return the worker's rank. It loads torch."""
        from millrace_fit.shard import Shard  # noqa: PLC0415
        from millrace_runtime.execution.collective import Rank  # noqa: PLC0415

        return Rank(Shard(self.index, self.count), self.exchange_fd, self.meeting)


def write_settings(settings: ExecutionSettings) -> dict[str, Any]:
    """Return the settings as values for JSON."""
    return dataclasses.asdict(settings) | {"model_path": str(settings.model_path)}
