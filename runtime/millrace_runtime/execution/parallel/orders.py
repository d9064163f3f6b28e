"""What a worker is started with: one argument, in JSON."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace_fit.kv_cache import Budget
from millrace_runtime.execution.settings import ExecutionSettings

if TYPE_CHECKING:
    from millrace_runtime.execution.rank import Rank


class Orders(msgspec.Struct, frozen=True):
    """Which worker it is, what it loads, and the descriptors it has from the engine."""

    settings: dict[str, Any]
    """Of ExecutionSettings."""
    index: int
    count: int
    meeting: str
    """A URL, as `Rank` has it."""
    host: Budget
    """This worker's share of the host's memory, before any has loaded."""
    engine_pid: int = 0
    socket_fd: int = -1
    exchange_fd: int = -1
    vitals_fd: int = -1

    def read_settings(self) -> ExecutionSettings:
        """Return the settings that `write_settings` wrote."""
        return ExecutionSettings(**(self.settings | {"model_path": Path(self.settings["model_path"])}))

    def read_rank(self) -> "Rank":
        """Return the worker's place. Loads torch."""
        from millrace_fit.shard import Shard  # noqa: PLC0415
        from millrace_runtime.execution.rank import Rank  # noqa: PLC0415

        return Rank(Shard(self.index, self.count), self.exchange_fd, self.meeting)


def write_settings(settings: ExecutionSettings) -> dict[str, Any]:
    """Return the settings as JSON has them."""
    return dataclasses.asdict(settings) | {"model_path": str(settings.model_path)}
