"""limits.cpu by stopping and continuing a container's processes: a token bucket over a 100 ms period.

No root and no cgroup: CPU time is read from the processes' own clocks (nanoseconds, one system call each).
A busy container is looked at several times a period; one that uses almost nothing every 0.4 s, and is
never stopped, so it is not woken.
"""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.nodes.process_tree import CpuMeter, list_tree

PERIOD_SECONDS = 0.1
_SHORTEST_WAIT, _LONGEST_WAIT = 0.004, 0.4
_INIT = "dumb-init"
_MOST_DEBT_PERIODS = 4.0
"""What a burst between two looks may cost at most, so that an idle container's first request is not
followed by seconds of silence."""


@dataclass(frozen=True)
class Step:
    """What to do now: the processes run or stand, and when to look again."""

    is_stopped: bool
    wait_seconds: float


class Bucket:
    """CPU seconds that a container may still use. Pure: time and use are given."""

    def __init__(self, cores: float, num_cpus: int, now: float) -> None:
        self._cores = cores
        self._num_cpus = num_cpus
        self._tokens = cores * PERIOD_SECONDS
        self._now = now
        self._idle_wait = PERIOD_SECONDS
        self._is_stopped = False

    def look(self, used_seconds: float, now: float) -> Step:
        """`used_seconds` of CPU since the last look."""
        full = self._cores * PERIOD_SECONDS
        elapsed = max(now - self._now, 0.0)
        self._now = now
        self._tokens = min(self._tokens + elapsed * self._cores, full) - used_seconds
        self._tokens = max(self._tokens, -full * _MOST_DEBT_PERIODS)
        if self._is_stopped:
            return self._stopped(full)
        return self._running(used_seconds, elapsed)

    def _stopped(self, full: float) -> Step:
        # Continue with most of a period's tokens in hand, so that a container works in few long slices
        # rather than many short ones: each stop costs it its caches and us a walk of its processes.
        missing = 0.6 * full - self._tokens
        self._is_stopped = missing > 1e-6
        return Step(
            self._is_stopped, max(missing / self._cores, _SHORTEST_WAIT) if self._is_stopped else self._soon()
        )

    def _running(self, used_seconds: float, elapsed: float) -> Step:
        if self._tokens <= 0:
            self._is_stopped = True
            return self._stopped(self._cores * PERIOD_SECONDS)
        if elapsed == 0 or used_seconds > 0.1 * self._cores * elapsed:
            self._idle_wait = PERIOD_SECONDS
            return Step(False, self._soon())
        self._idle_wait = min(self._idle_wait * 2, _LONGEST_WAIT)
        return Step(False, self._idle_wait)

    def _soon(self) -> float:
        """When the tokens can be gone at the earliest."""
        return min(max(self._tokens / self._num_cpus, _SHORTEST_WAIT), PERIOD_SECONDS)


async def enforce_quota(pid: int, cores: float) -> None:
    """Hold the processes at and below `pid` to `cores` until `pid` ends or we are cancelled."""
    num_cpus = os.cpu_count() or 1
    if cores >= num_cpus:
        return
    bucket, meter = Bucket(cores, num_cpus, time.monotonic()), CpuMeter(pid)
    stopped: set[int] = set()
    try:
        while (used := meter.read()) is not None:
            step = bucket.look(used, time.monotonic())
            stopped = _stop(pid, stopped) if step.is_stopped else _continue(stopped)
            await asyncio.sleep(step.wait_seconds)
    finally:
        _continue(stopped)


def _stop(pid: int, already: set[int]) -> set[int]:
    """Stop the whole tree; look again for those started meanwhile.

    An init stays: it passes SIGCONT on to its child, which it can reach when that stands once more.
    """
    while fresh := set(_without_init(list_tree(pid))) - already:
        for each in fresh:
            _send(each, signal.SIGSTOP)
        already = already | fresh
    return already


def _without_init(tree: list[int]) -> list[int]:
    with contextlib.suppress(OSError, IndexError):
        if Path(f"/proc/{tree[0]}/comm").read_text().strip() == _INIT:
            return tree[1:]
    return tree


def _continue(stopped: set[int]) -> set[int]:
    for each in stopped:
        _send(each, signal.SIGCONT)
    return set()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
