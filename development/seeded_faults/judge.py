"""Puts one fault at a time into a tree, and runs the tests of its package there until one fails.

A find is a test that fails with the fault and passes without it. A module that can't be imported any more, a
run that hangs and a run that dies are none.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from development.seeded_faults.draw import PACKAGES, Fault
from development.seeded_faults.nearness import order_tests

LIMIT_SECONDS = 240.0
POLL_SECONDS = 0.2
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""
FLAGS = ("-q", "-m", "not long", "-p", "no:cacheprovider", "-n", "0", "-o", "junit_family=xunit1")
OUT_OF_TIME = "out of time"
TEXT_IS_GONE = "the tree does not have this text once"


@dataclass(frozen=True)
class Judgement:
    """Which test found a fault, or why none did, and after how many seconds."""

    found_by: str | None
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Run:
    """How a run of tests ended: with failing tests, or with what the note says."""

    failed: tuple[str, ...] = ()
    note: str = ""
    is_last: bool = False
    """Whether no other run can find more."""


@dataclass
class Clock:
    """The seconds of a fault's tests, less those in which pytest waited for a processor of a busy machine."""

    limit: float
    spent: float = 0.0

    def wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return a process's status, or None where the limit comes before its end."""
        began, before, waited = time.monotonic(), self.spent, 0.0
        while (status := process.poll()) is None and self.spent < self.limit:
            time.sleep(POLL_SECONDS)
            waited = read_waited_seconds(process.pid) or waited
            self.spent = before + time.monotonic() - began - waited
        return status


def read_waited_seconds(pid: int) -> float:
    """Return for how long a process could have run and had no processor, as far as the kernel reports it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def judge(
    fault: Fault,
    tree: Path,
    first: str | None = None,
    tests: list[str] | None = None,
    limit: float = LIMIT_SECONDS,
) -> Judgement:
    """Run the test that found it elsewhere, then those near its module, then the rest of its package.

    Where tests are named, these alone.
    """
    near, rest = order_tests(tree, fault.file, list(_package_tests(fault)))
    clock = Clock(limit)
    run = Run()
    for stage in [tests] if tests else [[first] if first else [], near, rest]:
        if stage and not run.is_last and not run.failed:
            run = _run_with_fault(fault, tree, stage, clock)
    return Judgement(next(iter(run.failed), None), round(clock.spent, 1), run.note)


def _package_tests(fault: Fault) -> tuple[str, ...]:
    return next(package.tests for package in PACKAGES if package.name == fault.package)


def _run_with_fault(fault: Fault, tree: Path, tests: list[str], clock: Clock) -> Run:
    with apply_to(tree, fault) as is_applied:
        if not is_applied:
            return Run(note=TEXT_IS_GONE, is_last=True)
        return run_tests(tree, ["-x", *tests], clock)


def find_flakes(tests: list[str], tree: Path) -> list[str]:
    """Return those of these tests that fail without a fault, too."""
    return [*run_tests(tree, tests, Clock(len(tests) * LIMIT_SECONDS)).failed] if tests else []


@contextmanager
def apply_to(tree: Path, fault: Fault) -> Iterator[bool]:
    """Have the fault in the tree, and take it out again, with the file's time of change."""
    path = tree / fault.file
    source = path.read_bytes() if path.exists() else b""
    if source.count(fault.before.encode()) != 1:
        yield False
        return
    times = path.stat()
    path.write_bytes(source.replace(fault.before.encode(), fault.after.encode()))
    try:
        yield True
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def run_tests(tree: Path, tests: list[str], clock: Clock) -> Run:
    """Run tests in one process with one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    python = tree / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "output").open("w+b") as output:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", *FLAGS, f"--junit-xml={report}", *tests]
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = clock.wait(process)
        finally:
            _end(process)
        if status is None:
            return Run(note=OUT_OF_TIME, is_last=True)
        if not report.exists():
            sys.stderr.write(Path(output.name).read_text()[-2000:])
            return Run(note=f"pytest ended with status {status}")
        return read_report(ET.parse(report).getroot())  # noqa: S314 - pytest wrote it


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read_report(report: ET.Element) -> Run:
    """Return the tests that failed by pytest's report, or that a file can't be imported."""
    failed = []
    for case in report.iter("testcase"):
        error = case.find("error")
        if error is not None and error.get("message") == "collection failure":
            return Run(note="does not import", is_last=True)
        if error is not None or case.find("failure") is not None:
            failed.append(_name_test(case))
    return Run(failed=tuple(dict.fromkeys(failed)))


def _name_test(case: ET.Element) -> str:
    file = case.attrib["file"]
    module = file.removesuffix(".py").replace("/", ".")
    classes = case.attrib["classname"].removeprefix(module).split(".")
    return "::".join([file, *(name for name in classes if name), case.attrib["name"]])
