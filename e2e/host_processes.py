"""The host processes of a pod on a process node: found by what they were started with, not by a name."""

import os
import signal
from pathlib import Path
from typing import Any


def pod_process_ids(pod: dict[str, Any]) -> list[int]:
    """Return the ids of a pod's processes, told by the pod's address in their environment."""
    mark = f"MILLRACE_BIND_ADDRESS={pod['status']['podIP']}".encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]


def kill_pod_processes(pod: dict[str, Any]) -> int:
    """Send SIGKILL to every process of a pod; return how many it reached.

    The kernel ends the others with a container's first process, so some have gone by their turn.
    """
    return sum([_kill(pid) for pid in pod_process_ids(pod)])


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _read(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's
