import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.cluster.nodes.process_tree import CpuMeter, list_tree, process_seconds
from e2e.cluster.nodes.quota import PERIOD_SECONDS, Bucket, enforce_quota
from testing.polling import wait_until_async

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")


def simulate(cores: float, demand: float, seconds: float, num_cpus: int = 2) -> tuple[float, int]:
    """CPU seconds used by a container that wants `demand` cores, and how often it was looked at."""
    bucket, now, used, is_stopped, looks, recent = Bucket(cores, num_cpus, 0.0), 0.0, 0.0, False, 0, 0.0
    while now < seconds:
        step = bucket.look(recent, now)
        is_stopped, looks = step.is_stopped, looks + 1
        recent = 0.0 if is_stopped else step.wait_seconds * demand
        used, now = used + recent, now + step.wait_seconds
    return used / now, looks


@pytest.mark.parametrize("cores", [0.1, 0.25, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("demand", [1.0, 2.0])
def test_use_is_held_to_the_limit(cores: float, demand: float) -> None:
    rate, _ = simulate(cores, demand, 20.0)
    assert rate == pytest.approx(min(cores, demand), rel=0.1)


def test_what_stays_below_its_limit_is_never_stopped() -> None:
    rate, _ = simulate(0.5, 0.3, 10.0)
    assert rate == pytest.approx(0.3, rel=0.02)


def test_an_idle_container_is_looked_at_seldom() -> None:
    _, looks = simulate(0.5, 0.0, 10.0)
    assert looks < 30


def test_a_burst_after_idling_is_not_held_against_it_for_long() -> None:
    bucket = Bucket(0.25, 2, 0.0)
    step = bucket.look(0.8, 0.4)
    assert step.is_stopped
    assert step.wait_seconds < 5 * PERIOD_SECONDS


def read_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().split()[2]


async def test_a_real_process_is_slowed_and_released() -> None:
    code = "import subprocess,sys; p=subprocess.Popen([sys.executable,'-c','while True: pass']); p.wait()"
    process = subprocess.Popen([sys.executable, "-I", "-c", code], start_new_session=True)  # noqa: ASYNC220
    try:
        await wait_until_async("its child", lambda: len(list_tree(process.pid)) >= 2)
        tree = list_tree(process.pid)
        task = asyncio.create_task(enforce_quota(process.pid, 0.2))
        await asyncio.sleep(0.3)
        before, start = sum(process_seconds(pid) or 0 for pid in tree), time.monotonic()
        await asyncio.sleep(1.5)
        rate = (sum(process_seconds(pid) or 0 for pid in tree) - before) / (time.monotonic() - start)
        assert rate < 0.35
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        states = [read_state(pid) for pid in list_tree(process.pid)]
        assert "T" not in states
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_children_that_came_and_went_are_counted() -> None:
    line = "i=0; while [ $i -lt 60 ]; do /bin/ls /usr/lib > /dev/null; i=$((i+1)); done; read x"
    with subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE) as process:
        meter = CpuMeter(process.pid)
        total, still = meter.read() or 0.0, 0
        while still < 3:
            time.sleep(0.1)
            used = meter.read()
            assert used is not None
            total, still = total + used, still + 1 if used == 0 else 0
        assert total > 0.02
    assert meter.read() is None
