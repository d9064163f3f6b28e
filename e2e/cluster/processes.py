"""Host processes of the cluster, recorded in files so that another process can end exactly these.

A record holds the process id and the time it started; both must agree before anything is signalled,
because ids are used again. Nothing is ever found by name.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

STOP_SECONDS = 15.0
SHORTER_STOPS = {"kube-apiserver": 1.0}
"""Of those that stay without a use: an API server stays more than 15 s after it has closed its port."""
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Record:
    """A process that was started: `started` is in clock ticks since boot, `boot` names that boot."""

    name: str
    pid: int
    started: int
    boot: str
    log: str

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        _reap(self.pid)
        return self.boot == _boot_id() and start_ticks(self.pid) == self.started

    @property
    def started_at(self) -> float:
        """When the process started, in seconds since the epoch. It must be of this boot."""
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / os.sysconf("SC_CLK_TCK")
        return time.time() - age


def start_ticks(pid: int) -> int | None:
    """Return when a process started, or None when there is none.

    A zombie counts as none, unless it is but its first thread: a killed API server's others held its port for
    a while, and the next one found it taken.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    state, num_threads, started = fields[0], int(fields[17]), int(fields[19])
    return None if state in {"Z", "X"} and num_threads <= 1 else started


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another process's child


class ProcessTable:
    """The cluster's processes, one record file each in `folder`, one log each in `logs`."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.folder = folder
        self.logs = logs

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> Record:
        """Start a process in a session of its own (Ctrl-C is ours to handle) and record it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with log.open("ab") as sink:
            child = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        child.returncode = 0  # reaped by `_reap`, so that no ResourceWarning is due for it
        record = Record(name, child.pid, start_ticks(child.pid) or 0, _boot_id(), str(log))
        self._write(record)
        return record

    def _write(self, record: Record) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / f".{record.name}"
        fresh.write_text(json.dumps(asdict(record)))
        fresh.rename(self.folder / f"{record.name}.json")

    def find(self, name: str) -> Record | None:
        """Return the record of a process that runs, or None."""
        return next((record for record in self.running() if record.name == name), None)

    def records(self) -> list[Record]:
        """Every record, oldest process first."""
        found = [Record(**json.loads(path.read_text())) for path in self.folder.glob("*.json")]
        return sorted(found, key=lambda record: (record.started, record.pid))

    def running(self) -> list[Record]:
        """The records whose process runs."""
        return [record for record in self.records() if record.is_alive]

    def kill(self, name: str) -> None:
        """End one process at once, without a word of warning."""
        self.stop(name, seconds=0.0)

    def stop(self, name: str, seconds: float = STOP_SECONDS) -> None:
        """End one process: SIGTERM, then SIGKILL when `seconds` have passed."""
        record = self.find(name)
        if record:
            end(record, seconds)
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def stop_all(self, seconds: float = STOP_SECONDS) -> list[str]:
        """End every recorded process, the youngest first; return the names of those that ran."""
        ended = []
        for record in reversed(self.records()):
            if record.is_alive:
                ended.append(record.name)
            self.stop(record.name, min(seconds, SHORTER_STOPS.get(record.name, seconds)))
        return ended


def end(record: Record, seconds: float) -> None:
    """End a process and wait until it is gone."""
    if seconds > 0 and _signal(record, signal.SIGTERM) and _is_gone_within(record, seconds):
        return
    _signal(record, signal.SIGKILL)
    _is_gone_within(record, STOP_SECONDS)


def _signal(record: Record, number: signal.Signals) -> bool:
    try:
        os.kill(record.pid, number)
    except ProcessLookupError:
        return False
    return True


def _is_gone_within(record: Record, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while record.is_alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def last_line(log: Path | str) -> str:
    """Return the last line of a log that says something, at most 300 characters of it."""
    try:
        lines = Path(log).read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it wrote nothing")
