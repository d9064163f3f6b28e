"""How busy others kept the machine while an engine was measured.

Theirs is the machine's CPU time less that of the measured processes and of our own client. The kernel counts
it in ticks of 10 ms, so that a turn of a second is known to two per cent of a core or so.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class Ticks(NamedTuple):
    """The machine's CPU time since it started, in clock ticks."""

    total: int
    idle: int


class Measured(Protocol):
    """What has processes of its own."""

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of all its processes so far."""


class Usage(NamedTuple):
    """CPU time so far."""

    machine: Ticks
    own_seconds: float
    """Of what is measured and of this process."""


class Busy(NamedTuple):
    """The others' share of the whole machine, in percent."""

    median: float
    highest: float


def read_ticks(stat: str) -> Ticks:
    """Return what the first line of /proc/stat says: user nice system idle iowait irq softirq steal."""
    fields = [int(word) for word in stat.split("\n", 1)[0].split()[1:9]]
    return Ticks(sum(fields), fields[3] + fields[4])


def compute_percent(before: Usage, after: Usage, ticks_per_second: int) -> float:
    """Return the others' share of the machine between two moments, in percent."""
    total = max(1, after.machine.total - before.machine.total)
    busy = total - (after.machine.idle - before.machine.idle)
    own = (after.own_seconds - before.own_seconds) * ticks_per_second
    return max(0.0, 100 * (busy - own) / total)


class Bystanders:
    """Samples every turn."""

    def __init__(
        self, ticks_per_second: int, read_stat: Callable[[], str] = Path("/proc/stat").read_text
    ) -> None:
        self._ticks_per_second, self._read_stat = ticks_per_second, read_stat
        self._percents: list[float] = []

    @property
    def busy(self) -> Busy | None:
        """The median and the worst turn, or None before the first."""
        if not self._percents:
            return None
        return Busy(round(statistics.median(self._percents), 1), round(max(self._percents), 1))

    @contextlib.contextmanager
    def watch(self, *engines: Measured) -> Iterator[None]:
        """Sample while these engines are measured."""
        before = self._sample(engines)
        yield
        self._percents.append(compute_percent(before, self._sample(engines), self._ticks_per_second))

    def _sample(self, engines: Sequence[Measured]) -> Usage:
        own = time.process_time() + sum(engine.read_cpu_seconds() for engine in engines)
        return Usage(read_ticks(self._read_stat()), own)
