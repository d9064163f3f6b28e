"""A test that hangs is named, with what it waits for, and ends the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.lanes import ROOT

HANGS = """
import asyncio

async def waits_for_ever():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

{before}

async def test_hangs():
    task = asyncio.create_task(waits_for_ever(), name="the guilty one")
    await asyncio.sleep(0)
    {then}
    task.cancel()
    await task
"""
UVLOOP = """
import pytest, uvloop

@pytest.fixture
def event_loop_policy():
    return uvloop.EventLoopPolicy()
"""


CONFTEST = """
import time

def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        {then}
"""


def run(folder: Path, test: str, conftest: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_hanging.py").write_text(test)
    (folder / "conftest.py").write_text(conftest)
    (folder / "none.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadfile", "--hang-seconds", "3"]
    command += ["--max-worker-restart", "0", "-p", "testing.hangs", "-c", str(folder / "none.ini")]
    command += ["-o", "asyncio_mode=auto", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then"),
    [("", "assert False"), (UVLOOP, "")],
    ids=["in the teardown of a failure", "in uvloop"],
)
def test_a_hanging_test_is_named_with_what_it_waits_for(tmp_path: Path, before: str, then: str) -> None:
    done = run(tmp_path, HANGS.format(before=before, then=then))
    assert "the guilty one" in done.stderr
    assert "waits_for_ever" in done.stderr
    assert "Fatal Python error: Aborted" in done.stderr
    assert "crashed while running 'test_hanging.py::test_hangs'" in done.stdout
    assert done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "conftest"),
    [
        ("import time\ntime.sleep(60)\ndef test_never(): pass", ""),
        ("def test_passes(): pass", CONFTEST.format(then="time.sleep(60)")),
    ],
    ids=["while it collects", "behind its last test"],
)
def test_a_worker_that_hangs_outside_of_tests_fails_the_run(tmp_path: Path, test: str, conftest: str) -> None:
    assert run(tmp_path, test, conftest).returncode
