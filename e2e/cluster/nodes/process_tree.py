"""A container's processes and the CPU time they used, read from /proc and the processes' clocks."""

import os
import time
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_REFRESH_SECONDS = 0.1
_CHILD_USER, _CHILD_SYSTEM = 13, 14  # cutime and cstime, counted after the command's closing parenthesis


def list_tree(pid: int) -> list[int]:
    """Return `pid` and every process below it; nothing when it has ended."""
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{each}/task")  # noqa: PTH208  a hot path
        except OSError:
            continue
        found.append(each)
        for thread in threads:
            waiting += _children(each, thread)
    return found


def _children(pid: int, thread: str) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


class CpuMeter:
    """Tells how many CPU seconds a tree of processes has used between two reads."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._tree: list[int] = []
        self._tree_at = float("-inf")
        self._before: dict[int, float] = {}
        self._reaped_before: dict[int, float] = {}

    def read(self) -> float | None:
        """Return the CPU seconds used since the last read, or None when the first process has ended."""
        if time.monotonic() - self._tree_at > _REFRESH_SECONDS:
            self._tree, self._tree_at = list_tree(self._pid), time.monotonic()
        now = {pid: used for pid in self._tree if (used := process_seconds(pid)) is not None}
        if self._pid not in now:
            return None
        reaped = {pid: reaped_seconds(pid) for pid in now}
        used = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in now.items())
        # What ended since the last read moved from its own clock into its parent's count of reaped
        # children: count what that shows beyond what we had seen of it alive.
        ended = sum(self._before[pid] for pid in self._before.keys() - now.keys())
        grown = sum(max(seconds - self._reaped_before.get(pid, 0.0), 0.0) for pid, seconds in reaped.items())
        self._before, self._reaped_before = now, reaped
        return max(used, 0.0) + max(grown - ended, 0.0)


def process_seconds(pid: int) -> float | None:
    """Return the CPU seconds of a process's threads, past and present; None when it has been reaped."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's encoding of a process's scheduler clock
    except OSError:
        return None


def reaped_seconds(pid: int) -> float:
    """Return the CPU seconds of the children that a process has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[_CHILD_USER]) + int(fields[_CHILD_SYSTEM])) * _TICK_SECONDS
