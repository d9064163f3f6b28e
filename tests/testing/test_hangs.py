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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then"),
    [("", ""), ("", "assert False"), (UVLOOP, "")],
    ids=["in its body", "in the teardown of a failure", "in uvloop"],
)
def test_a_hanging_test_is_named_with_what_it_waits_for(tmp_path: Path, before: str, then: str) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGS.format(before=before, then=then))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadfile", "--hang-seconds", "1"]
    command += [
        "--max-worker-restart",
        "0",
        "-p",
        "testing.hangs",
        "-c",
        str(tmp_path / "none.ini"),
        "-o",
        "asyncio_mode=auto",
        str(tmp_path),
    ]
    (tmp_path / "none.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert "the guilty one" in done.stderr
    assert "waits_for_ever" in done.stderr
    assert "Fatal Python error: Aborted" in done.stderr
    assert "crashed while running 'test_hanging.py::test_hangs'" in done.stdout
