"""A group stops, goes on and ends with everything it started, even if we are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.process import THREAD_SETTINGS, ProcessGroup
from testing.polling import wait_until

ROOT = Path(__file__).resolve().parents[2]
FAMILY = ("sh", "-c", "sleep 60 & echo $!; wait")


def read_state(pid: int) -> str:
    """The state letter in /proc, Z for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_grandchild_stops_and_goes_on_and_ends_too(tmp_path: Path) -> None:
    with ProcessGroup(FAMILY, {}, tmp_path / "log", is_piped=True) as group:
        grandchild = int(group.stdout.readline())
        group.pause()
        wait_until("the grandchild stands still", lambda: read_state(grandchild) == "T")
        group.resume()
        wait_until("the grandchild goes on", lambda: read_state(grandchild) == "S")
        group.pause()
    wait_until("the grandchild has ended", lambda: read_state(grandchild) == "Z")


def test_a_command_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo no such model >&2")
    with (
        ProcessGroup(command, {}, tmp_path / "log", is_piped=False) as group,
        pytest.raises(EngineError, match="ended by itself; its last words: no such model"),
    ):
        group.await_condition("ready", lambda: False, 10)


@pytest.mark.parametrize(("heeds", "status"), [("exit 7", 7), ("", None)])
def test_a_command_that_is_asked_to_end_tells_its_status(
    tmp_path: Path, heeds: str, status: int | None
) -> None:
    command = ("sh", "-c", f"trap '{heeds}' TERM; echo; while :; do sleep 0.01; done")
    with ProcessGroup(command, {}, tmp_path / "log", is_piped=True) as group:
        group.stdout.readline()
        assert group.terminate(10.0 if heeds else 0.05) == status


def test_a_wait_is_bounded(tmp_path: Path) -> None:
    with (
        ProcessGroup(("sleep", "60"), {}, tmp_path / "log", is_piped=False) as group,
        pytest.raises(EngineError, match=r"not ready after 0\.1 s; its last words: it said nothing"),
    ):
        group.await_condition("ready", lambda: False, 0.1)


def test_no_engine_inherits_what_would_set_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "KMP_AFFINITY", "MILLRACE_CPU_LIMIT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OTHER", "kept")
    with ProcessGroup(("env",), {"OMP_WAIT_POLICY": "PASSIVE"}, tmp_path / "log", is_piped=True) as group:
        said = dict(line.split("=", 1) for line in group.stdout.read().decode().splitlines() if "=" in line)
    assert {name for name in said if name.startswith(THREAD_SETTINGS)} == {"OMP_WAIT_POLICY"}
    assert said["OTHER"] == "kept"


def test_stopped_processes_end_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from benchmarks.runtime.process import ProcessGroup\n"
        f"group = ProcessGroup({FAMILY!r}, {{}}, Path({str(tmp_path / 'log')!r}), is_piped=True)\n"
        "print(int(group.stdout.readline()), flush=True); group.pause(); print('stopped', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as benchmark:
        assert benchmark.stdout is not None
        grandchild = int(benchmark.stdout.readline())
        assert benchmark.stdout.readline() == b"stopped\n"
        os.kill(benchmark.pid, signal.SIGKILL)
        benchmark.wait()
    wait_until("the grandchild has ended", lambda: read_state(grandchild) == "Z")
