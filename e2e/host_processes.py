"""The host processes of a pod on a process node: found by what they were started with, not by a name."""

import os
import signal
from pathlib import Path
from typing import Any

from testing.polling import wait_until


def pod_process_ids(pod: dict[str, Any]) -> list[int]:
    """Return the ids of a pod's processes, found by the pod's address in their environment."""
    mark = f"MILLRACE_BIND_ADDRESS={pod['status']['podIP']}".encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]


def kill_pod_processes(pod: dict[str, Any]) -> int:
    """Send SIGKILL to every process of a pod and see them gone; return how many it reached.

    The kernel ends the others with a container's first process, so some have gone by their turn. It closes
    a process's sockets only after it has taken its memory back, so a killed one takes connections a while.
    """
    pids = pod_process_ids(pod)
    num_reached = sum([_kill(pid) for pid in pids])
    wait_until("the killed processes gone", lambda: all(_has_ended(pid) for pid in pids))
    return num_reached


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _has_ended(pid: int) -> bool:
    status = _read(Path(f"/proc/{pid}/status"), b"\n")
    return not status or b"State:\tZ (zombie)" in status


def _read(path: Path, separator: bytes = b"\0") -> list[bytes]:
    try:
        return path.read_bytes().split(separator)
    except OSError:
        return []  # it has ended, or is another user's
