"""Runs a part's steps one after the other, each in a process of its own with a limit of time.

Processes are forked from a server that has imported torch and has touched no device. So a step costs no
import, and has a context of its own on the device.
"""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import Job, describe, run_job

PART_SECONDS = 450
"""A part ends before nine minutes are over, whatever its steps do. The first import of torch counts too."""
STEP_SECONDS = 150
"""One step may hang for so long: the others of its part still have their time."""
DESCRIBE_SECONDS = 60
_MEMORY = Path("/dev/shm")  # noqa: S108  a folder of our own is made there
"""A file system in memory: what steps leave each other there is read at once."""
_PRELOADED = ["torch", "numpy"]
"""Nothing that could touch the device: a process that is forked after that can't use it."""


class Outcome(StrEnum):
    """How a step ended."""

    RAN = "ran"
    FAILED = "failed"
    OVERDUE = "overdue"
    LEFT_OUT = "left out"
    """The part's time was over before it began."""


@dataclass(slots=True)
class Ran:
    """A step's rows, and how it ended."""

    name: str
    outcome: Outcome
    seconds: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What Triton knows of the kernels after it."""

    def to_json(self) -> dict[str, Any]:
        """Return the step as a part's JSON has it."""
        told: dict[str, Any] = {"name": self.name, "outcome": str(self.outcome), "seconds": self.seconds}
        if self.error is not None:
            told["error"] = self.error
        return told | {"rows": self.rows}


def run_steps(
    module: str, names: Sequence[str], folder: Path, *, is_dry_run: bool, on_step: Callable[[Ran], None]
) -> list[Ran]:
    """Run the steps, and call `on_step` after each."""
    began = time.monotonic()
    ran = []
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as shared:
        for name in names:
            left = PART_SECONDS - (time.monotonic() - began)
            job = Job(module, name, is_dry_run, folder, Path(shared))
            is_due = left > 1
            ran.append(_run_one(job, min(left, STEP_SECONDS)) if is_due else Ran(name, Outcome.LEFT_OUT, 0.0))
            on_step(ran[-1])
    return ran


def read_device(*, is_dry_run: bool) -> dict[str, Any]:
    """Return what the device is. A part goes on without, and says why."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "device.json"
        code = _run_apart(describe, (path,), {"is_dry_run": is_dry_run}, DESCRIBE_SECONDS)
        return json.loads(path.read_text()) if path.exists() else {"name": f"unknown: exit code {code}"}


def _run_one(job: Job, limit_seconds: float) -> Ran:
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "record.jsonl"
        began = time.monotonic()
        code = _run_apart(run_job, (job, record), {}, limit_seconds)
        seconds = round(time.monotonic() - began, 2)
        return read_record(job.step, record, code, seconds)


def _run_apart(
    target: Callable[..., None], arguments: tuple[Any, ...], named: dict[str, Any], limit_seconds: float
) -> int | None:
    """Run a function in a process of its own. Return its exit code, or None if it was ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=target, args=arguments, kwargs=named)
    process.start()
    process.join(limit_seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


def read_record(name: str, record: Path, code: int | None, seconds: float) -> Ran:
    """Return what a step has reported until its process ended."""
    ran = Ran(name, Outcome.RAN, seconds)
    for line in _read_lines(record):
        match line:
            case {"row": row}:
                ran.rows.append(row)
            case {"error": error}:
                ran.error = error
            case _:
                ran.facts |= line
    if code is None:
        ran.outcome, ran.error = Outcome.OVERDUE, f"it was ended after {seconds:.0f} s"
    elif code != 0:
        ran.outcome, ran.error = Outcome.FAILED, ran.error or f"its process ended with {code}"
    return ran


def _read_lines(record: Path) -> Iterator[dict[str, Any]]:
    """Yield the record's lines. The last one may have been cut off."""
    for line in record.read_text(encoding="utf-8").splitlines() if record.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            return
