"""A process on one core, with what it and its children take of memory and of the core."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

GATEWAY_CORE, LOAD_CORE = 0, 1
STOP_SECONDS = 10
_TICK = os.sysconf("SC_CLK_TCK")
_GROUP, _TIMES = 2, slice(11, 13)
"""Where /proc/PID/stat has a process's group, and its user and system time, after its name."""


class Process:
    """A running command. Its group has its children, too."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    def say(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def read_line(self) -> str:
        """Return the next line of its stdout; empty at its end."""
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._popen.poll() is not None

    def read_resident_bytes(self) -> int:
        """Return the memory of the group."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._list_pids())
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def read_cpu_seconds(self) -> float:
        """Return the time that the group has computed."""
        return sum(sum(map(int, _read_stat(pid)[_TIMES])) for pid in self._list_pids()) / _TICK

    def _list_pids(self) -> list[str]:
        group = str(self._popen.pid)
        pids = (path.name for path in Path("/proc").iterdir())
        return [pid for pid in pids if pid.isdigit() and _is_of(pid, group)]

    def send(self, number: signal.Signals) -> None:
        """Send the group a signal."""
        os.killpg(self._popen.pid, number)

    def end(self) -> None:
        """End the group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._popen.pid, number)
                self._popen.wait(STOP_SECONDS)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


@contextmanager
def running(
    command: Sequence[str],
    core: int,
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    is_first: bool = False,
    is_piped: bool = False,
) -> Iterator[Process]:
    """Run the command on one core while entered; what it says goes to `log`.

    `is_piped`: its stdin and stdout are pipes to us.
    `is_first`: it runs before all others of the core. The clients do, so that a token's lag is that of the
    gateway, and not of the stub replicas beside them.
    """
    prefix = ["taskset", "-c", str(core), *(["chrt", "-f", "10"] if is_first else [])]
    limit = ["sh", "-c", 'ulimit -n "$(ulimit -Hn)"; exec "$@"', "sh"]  # a stream takes two files
    with log.open("ab") as said:
        popen = subprocess.Popen(
            [*limit, *prefix, *command],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE if is_piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_piped else said,
            stderr=said,
            text=True,
            start_new_session=True,
        )
    process = Process(popen)
    try:
        yield process
    finally:
        process.end()


def _read_stat(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", "0", "0", *["0"] * 20]


def _is_of(pid: str, group: str) -> bool:
    return _read_stat(pid)[_GROUP] == group
