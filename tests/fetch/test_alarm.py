"""A fetch that nothing moves any more ends itself, and says what to do."""

import fcntl
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from millrace_fetch.cli import runner
from millrace_fetch.cli.progress_output import Lines
from testing.model_sources.processes import execute_fetch, finish
from testing.model_sources.servers import FakeHub


def test_what_moves_a_fetch_puts_the_alarm_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "TICK_SECONDS", 0.005)
    monkeypatch.setattr(runner, "LIMIT_SECONDS", 0.5)
    is_over, reasons = threading.Event(), list[str]()

    def end(reason: str) -> None:
        reasons.append(reason)
        is_over.set()

    with runner.Alarm(Lines(io.StringIO()), Path("/models/m"), end) as watch:
        for _ in range(15):
            watch.advance(1)
            assert not is_over.wait(0.05)
        assert is_over.wait(10)
    assert "no progress" in reasons[0]
    assert "the disk of /models/m does not answer" in reasons[0]


async def test_who_waits_for_a_lock_that_nobody_gives_back_ends(hub: FakeHub, tmp_path: Path) -> None:
    own = tmp_path / "m" / ".millrace"
    own.mkdir(parents=True)
    descriptor = os.open(own / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    code = f"""
from millrace_fetch.cli import runner, command
runner.TICK_SECONDS = runner.LIMIT_SECONDS = 0.05
command.main(["hf://org/m", "--to", {str(own.parent)!r}])
"""
    prefix = (sys.executable, "-c", code)
    started = await execute_fetch("hf://org/m", own.parent, prefix=prefix, HF_ENDPOINT=hub.endpoint)
    status, _, err = await finish(started)
    os.close(descriptor)
    assert (status, "if its log shows no progress, delete its pod" in err) == (1, True), err
