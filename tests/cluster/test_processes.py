"""Processes are ended by their records and by nothing else."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from e2e.cluster.processes import ProcessTable, Record, last_line, start_ticks
from testing.polling import wait_until

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py")

REPOSITORY = Path(__file__).resolve().parents[2]
SLEEP = ("sleep", "60")
STUBBORN = ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ProcessTable]:
    found = ProcessTable(tmp_path / "pids", tmp_path / "logs")
    yield found
    found.stop_all(seconds=0.0)


def save(table: ProcessTable, record: Record) -> None:
    (table.folder / f"{record.name}.json").write_text(json.dumps(asdict(record)))


def test_a_process_is_found_by_another_table_and_ended(table: ProcessTable) -> None:
    record = table.start("one", SLEEP, {})
    other = ProcessTable(table.folder, table.logs)

    assert other.find("one") == record
    other.stop("one")

    assert start_ticks(record.pid) is None
    assert other.records() == []


def test_all_are_ended_the_youngest_first(table: ProcessTable) -> None:
    table.start("old", SLEEP, {})
    time.sleep(0.03)  # two ticks of the clock that start times are counted in
    table.start("young", SLEEP, {})
    assert table.stop_all() == ["young", "old"]
    assert table.stop_all() == []


def test_one_that_ignores_sigterm_is_killed(table: ProcessTable) -> None:
    record = table.start("stubborn", STUBBORN, {})
    wait_until("it says that it is up", lambda: last_line(record.log) == "up")
    table.stop("stubborn", seconds=0.2)
    assert not record.is_alive


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "another"}])
def test_a_process_that_only_has_the_same_id_is_left_alone(
    table: ProcessTable, change: dict[str, object]
) -> None:
    real = table.start("real", SLEEP, {})
    save(table, replace(real, name="stale", **change))  # type: ignore[arg-type]

    table.stop("stale")

    assert real.is_alive
    table.stop("real")


def test_a_process_that_ended_by_itself_is_gone(table: ProcessTable) -> None:
    record = table.start("short", ("sh", "-c", "echo farewell"), {"X": "y"})
    wait_until("it has ended", lambda: not record.is_alive)
    assert last_line(record.log) == "farewell"
    assert table.find("short") is None


def test_the_reaper_ends_all_when_its_starter_is_gone(table: ProcessTable) -> None:
    record = table.start("orphan", SLEEP, {})
    command = [sys.executable, "-m", "e2e.cluster.reaper", str(table.folder.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY) as reaper:
        assert record.is_alive
        assert reaper.stdin
        reaper.stdin.close()
        assert reaper.wait(timeout=20) == 0
    assert not record.is_alive


def test_our_own_start_time_is_known() -> None:
    assert start_ticks(os.getpid())
    assert start_ticks(2**22 + 1) is None


def test_a_log_without_words_is_described(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert last_line(tmp_path / "empty") == "it wrote nothing"
    assert last_line(tmp_path / "absent") == "no log"


HALF_DEAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(60, 0)  # exit: ends this thread alone
"""
"""Its first thread is a zombie and the others hold what is open, as a killed API server is for a while."""


def read_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of exit is another one")
def test_a_process_is_not_gone_before_all_its_threads_are() -> None:
    with subprocess.Popen([sys.executable, "-c", HALF_DEAD]) as child:
        wait_until("its first thread has ended", lambda: read_state(child.pid) == "Z")
        assert start_ticks(child.pid) is not None
        child.kill()
        child.wait()
        assert start_ticks(child.pid) is None
