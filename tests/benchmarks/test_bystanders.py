"""Others' CPU time is the machine's without the engine's and ours."""

from pathlib import Path

import pytest

from benchmarks.runtime.bystanders import Busy, Bystanders, Ticks, Usage, compute_percent, read_ticks
from benchmarks.runtime.process import ProcessGroup
from testing.polling import wait_until

ROOM = Ticks(total=1000, idle=400)


def test_waiting_for_a_disk_is_idle() -> None:
    assert read_ticks("cpu  10 1 5 80 4 0 0 2 7 7\ncpu0 1 1 1 1\n") == Ticks(total=102, idle=84)


def test_the_engines_own_time_is_not_the_others() -> None:
    after = Ticks(total=1200, idle=420)  # 180 of 200 ticks were busy
    assert compute_percent(Usage(ROOM, 5.0), Usage(after, 6.5), 100) == pytest.approx(15.0)
    assert compute_percent(Usage(ROOM, 5.0), Usage(after, 7.0), 100) == 0


def test_the_worst_turn_is_told_beside_the_median() -> None:
    busy_ticks = iter([0, 100, 100, 4100, 4100, 4300])  # of 10,000 in each turn
    idle_ticks = iter([0, 9900, 9900, 15900, 15900, 25700])
    bystanders = Bystanders(1, lambda: f"cpu {next(busy_ticks)} 0 0 {next(idle_ticks)} 0 0 0 0\n")
    assert bystanders.busy is None
    for _ in range(3):
        with bystanders.watch():
            pass
    assert bystanders.busy == Busy(median=2.0, highest=40.0)


def test_a_groups_time_is_that_of_all_its_processes(tmp_path: Path) -> None:
    command = ("sh", "-c", "sh -c 'while :; do :; done' & wait")
    with ProcessGroup(command, {}, tmp_path / "log", is_piped=False) as group:
        wait_until("0.1 s of CPU time", lambda: group.read_cpu_seconds() >= 0.1)
