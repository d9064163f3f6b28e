"""Leaves nothing of a test run behind, however the run ends.

The run marks what it starts from now on: all descendants inherit an environment variable. A guard in a
session of its own waits for the end of the run, ends each process that still has the mark, and removes the
run's folder for temporary files. A fixture can't do that: none runs after SIGKILL or a second Ctrl-C.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

MARK = "MILLRACE_TEST_RUN"
GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_REPOSITORY = Path(__file__).resolve().parents[1]


def guard_this_process() -> None:
    """Mark what this process starts from now on, give it a temporary folder, and start a guard for these."""
    mark = uuid.uuid4().hex
    folder = tempfile.mkdtemp(prefix="millrace-tests-")
    guard = subprocess.Popen(
        [sys.executable, "-m", "development.leftovers", str(os.getpid()), mark, folder],
        cwd=_REPOSITORY,
        env={name: value for name, value in os.environ.items() if name != MARK},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    guard.returncode = 0  # it outlives us on purpose, so no ResourceWarning is due for it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest keeps what tests wrote
    os.environ |= {MARK: mark, "TMPDIR": folder}
    tempfile.tempdir = folder


def end_marked(mark: str, grace_seconds: float = GRACE_SECONDS, name: str = MARK) -> list[int]:
    """End every process with the mark: SIGTERM, then SIGKILL after the grace. Return their ids."""
    ended: list[int] = []
    deadline = time.monotonic() + grace_seconds
    while found := find_marked(mark, name):
        is_over = time.monotonic() > deadline
        for pid in found if is_over else set(found).difference(ended):
            _send(pid, mark, name, signal.SIGKILL if is_over else signal.SIGTERM)
        ended += [pid for pid in found if pid not in ended]
        time.sleep(_POLL_SECONDS)
    return ended


def find_marked(mark: str, name: str = MARK) -> list[int]:
    """Return the ids of the processes that were started with the mark in their environment."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _has_mark(path, mark, name)]


def _has_mark(process: Path, mark: str, name: str) -> bool:
    try:
        return f"{name}={mark}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is another user's


def _send(pid: int, mark: str, name: str, number: signal.Signals) -> None:
    """Signal the process, unless its id has become another's meanwhile."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _has_mark(Path(f"/proc/{pid}"), mark, name):
            signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def main(run_id: int, mark: str, folder: Path) -> None:
    """Wait for the end of the run, then remove what is left of it."""
    _wait_for_end(run_id)
    end_marked(mark)
    shutil.rmtree(folder, ignore_errors=True)


def _wait_for_end(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    if os.getppid() == pid:
        select.select([process], [], [])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
