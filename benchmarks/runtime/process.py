"""A command in a session of its own: stopped, continued and ended with every process it started.

The whole group is signalled, supervisors included: nobody watches a stopped process and finds it late.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from benchmarks.runtime.errors import EngineError

STOP_SECONDS = 20.0
THREAD_SETTINGS = ("OMP_", "GOMP_", "KMP_", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MILLRACE_CPU_LIMIT")
"""How the names of variables begin that set an engine's threads."""
_GUARD = 'read -r _ || kill -s KILL -- "-$1"'
"""Kills a group when our end of the pipe closes without a word: were we killed, the stopped would stay."""
_POLL_SECONDS = 0.02
_GROUP, _TIMES = 2, slice(11, 15)
"""Where /proc/PID/stat has them, after the name: its group; user and system time, and its dead children's."""


class ProcessGroup:
    """The group. Leaving the `with` ends it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, is_piped: bool
    ) -> None:
        """Start the command with `environment` on top of what it inherits; what it says goes to `log`.

        With `is_piped` its input and output are pipes to us.
        """
        self._log = log
        self.began = time.perf_counter()
        with log.open("wb") as said:
            self._leader = subprocess.Popen(
                command,
                env={**inherit_environment(os.environ), **environment},
                stdin=subprocess.PIPE if is_piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_piped else said,
                stderr=said,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(self._leader.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def stdin(self) -> IO[bytes]:
        """Where a piped command reads."""
        assert self._leader.stdin is not None
        return self._leader.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """What a piped command writes."""
        assert self._leader.stdout is not None
        return self._leader.stdout

    def pause(self) -> None:
        """Stop every process of the group where it is."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue them."""
        self._signal(signal.SIGCONT)

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of every process of the group, and of those of them that ended."""
        stats = map(_read_stat, Path("/proc").glob("[0-9]*/stat"))
        members = [stat for stat in stats if stat and stat[_GROUP] == str(self._leader.pid)]
        return sum(int(ticks) for stat in members for ticks in stat[_TIMES]) / os.sysconf("SC_CLK_TCK")

    def await_condition(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition holds. Raises EngineError when the command ends or time is up."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.check_alive()
            if time.monotonic() > deadline:
                raise self.failure(f"not {what} after {seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def check_alive(self) -> None:
        """Raise EngineError when the command has ended."""
        if self._has_ended():
            raise self.failure("it ended by itself")

    def failure(self, what: str) -> EngineError:
        """Return an error that quotes the last line of the log."""
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return EngineError(f"{what}; its last words: {last[:300]}")

    def terminate(self, seconds: float) -> int | None:
        """Ask the command alone to end, as a kubelet does. Return its status, or None if it goes on."""
        os.kill(self._leader.pid, signal.SIGTERM)
        try:
            return self._leader.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End every process of the group: asked first, killed where they don't heed."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._signal(signal.SIGKILL)  # before the leader is reaped: so long nobody else can have its number
        self._guard.communicate(b"ended\n")
        self._leader.wait()
        for pipe in (self._leader.stdin, self._leader.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _signal(self, number: int) -> None:
        if self._leader.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._leader.pid, number)

    def _has_ended(self) -> bool:
        """Whether the command has ended; it is left unreaped, and its number taken."""
        if self._leader.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def inherit_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Return what engines inherit: nothing that would set one's threads and not another's."""
    return {name: value for name, value in ours.items() if not name.startswith(THREAD_SETTINGS)}


def _read_stat(path: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; none of a process that has just ended."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP unwind as Ctrl-C does, so that every `with` ends what it started."""

    def unwind(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.signal(number, unwind) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
