"""Nothing of a test run is left, however it ends: these tests start runs of pytest and interrupt them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from development.leftovers import end_marked, find_marked
from e2e.cluster.nodes.process_tree import list_tree
from e2e.cluster.processes import start_ticks

ROOT = Path(__file__).resolve().parents[2]
OWN_MARK = "MILLRACE_LEFTOVERS"
RUNS = [
    pytest.param(
        "tests/runtime/replica/test_replica.py",
        "test_serves_streams_and_drains",
        "http_process",
        id="replica",
    ),
    pytest.param("tests/gateway/test_command.py", "test_a_term_signal", "millrace_gateway", id="gateway"),
    pytest.param("e2e/test_nodes.py", "test_readiness", "/tmp/ready", id="pod", marks=pytest.mark.long),
]
"""A selection of tests by file and name, and a word of the command line of what it starts."""
INTERRUPTIONS = [
    pytest.param((signal.SIGINT,), id="one Ctrl-C", marks=pytest.mark.long),
    pytest.param((signal.SIGINT, signal.SIGINT), id="two Ctrl-C"),
    pytest.param((signal.SIGTERM,), id="SIGTERM", marks=pytest.mark.long),
    pytest.param((signal.SIGKILL,), id="SIGKILL"),
]
START_SECONDS = 120.0
END_SECONDS = 60.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.reads(
        *(
            "development",
            "e2e/cluster",
            "testing/polling.py",
            "operator/millrace_kubernetes",
            "runtime/millrace_fit",
        ),
        *("runtime/millrace_gateway", "runtime/millrace_runtime", "tests/gateway", "tests/kubernetes"),
        *("tests/runtime/api", "tests/runtime/replica"),
    ),
]


class Run:
    """A run of pytest in a session of its own, with folders of its own for temporary files."""

    def __init__(self, folder: Path, path: str, name: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folders = (folder / "temporary", folder / "pytest")
        for each in self.folders:
            each.mkdir()
        own = {
            OWN_MARK: self.mark,
            "TMPDIR": str(self.folders[0]),
            "PYTEST_DEBUG_TEMPROOT": str(self.folders[1]),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--again", path, "-k", name],
            cwd=ROOT,
            env={**os.environ, **own},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def has_started(self, word: str) -> bool:
        """Whether a process below this run has the word in its command line."""
        assert self.process.poll() is None, f"the run ended with {self.process.returncode}"
        return any(word in read_command(pid) for pid in list_tree(self.process.pid)[1:])

    def interrupt(self, numbers: tuple[signal.Signals, ...]) -> None:
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.2)
        self.process.wait(END_SECONDS)


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def wait_for(what: str, check: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, str], Run]]:
    started: list[Run] = []

    def start_one(path: str, name: str) -> Run:
        started.append(Run(tmp_path, path, name))
        return started[-1]

    yield start_one
    for run in started:
        run.process.kill()
        run.process.wait()
        end_marked(run.mark, 0.0, OWN_MARK)


def assert_nothing_is_left(run: Run, seen: dict[int, int | None]) -> None:
    """`seen` are the processes before the interruption, by the ticks at which they started."""

    def list_left() -> list[str]:
        alive = {pid for pid, started in seen.items() if started and start_ticks(pid) == started}
        return [f"{pid} {read_command(pid)}" for pid in alive.union(find_marked(run.mark, OWN_MARK))]

    with contextlib.suppress(AssertionError):
        wait_for("they end", lambda: not list_left(), END_SECONDS)
    assert list_left() == []
    assert list(run.folders[0].iterdir()) == []
    secrets = [path for path in run.folders[1].rglob("*") if path.suffix == ".key" or path.name == "etcd"]
    assert secrets == []  # pytest keeps its folder, and whoever finds a cluster's keys there may use them


@pytest.mark.parametrize("numbers", INTERRUPTIONS)
@pytest.mark.parametrize(("path", "name", "word"), RUNS)
def test_an_interrupted_run_leaves_nothing(
    start: Callable[[str, str], Run], path: str, name: str, word: str, numbers: tuple[signal.Signals, ...]
) -> None:
    run = start(path, name)
    wait_for(f"no {word}", lambda: run.has_started(word), START_SECONDS)
    seen = {pid: start_ticks(pid) for pid in list_tree(run.process.pid)}
    run.interrupt(numbers)
    assert_nothing_is_left(run, seen)
