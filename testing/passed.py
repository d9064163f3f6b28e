"""Tests of what seldom changes run once for each content of what they read.

A test marked `reads("kernels", "e2e/cluster")` leaves a stamp where it passes: an empty file below the cache
folder, named by a hash of the test's name, of these paths, of the test's own folder, of each file that the
test imports, directly or not, of the locked dependencies, and of this machine's Python, compiler and CPU. So
the paths name what imports do not show. While the stamp is there, the test is skipped. `--again` runs it all
the same.
"""

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

from e2e.cluster.sources import cache_folder
from millrace_kernels.native.instruction_sets import read_cpu_flags
from testing.affected.imports import find_imported

ROOT = Path(__file__).resolve().parents[1]
ALWAYS_READ = ("requirements.lock", "pyproject.toml", "conftest.py", "testing")
CHOOSES_TESTS = {"affected", "budget.py", "costs.py", "exceptions.toml", "lanes.py", "passed.py", "rules.py"}
"""In `testing`: what decides which tests run, and what they may cost, and not whether they pass."""
REASON = "passed before, with the same sources"
MONTH_SECONDS = 30 * 24 * 3600
_STAMP = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the flag."""
    parser.addoption("--again", action="store_true", help="run tests that passed with the same sources, too")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line(
        "markers", "reads(*paths): runs once for each content of these paths, unless --again is given"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what has a stamp."""
    for item in items:
        paths = [path for marker in item.iter_markers("reads") for path in marker.args]
        if not paths:
            continue
        stamp = stamps_folder() / name_stamp(item, paths)
        item.stash[_STAMP] = stamp
        if stamp.exists() and not config.getoption("again"):
            stamp.touch()
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Stamp a test that passed, once its fixtures are gone without an error, too."""
    report = yield
    stamp = item.stash.get(_STAMP, None)
    if stamp is not None:
        if not report.passed:
            del item.stash[_STAMP]
        elif call.when == "teardown":
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
    return report


def pytest_sessionfinish() -> None:
    """Forget the stamps that no run has met for a month."""
    oldest = time.time() - MONTH_SECONDS
    for stamp in stamps_folder().glob("*"):
        if stamp.stat().st_mtime < oldest:
            stamp.unlink(missing_ok=True)


def stamps_folder() -> Path:
    """Return where the stamps are."""
    return cache_folder() / "passed"


def name_stamp(item: pytest.Item, paths: list[str]) -> str:
    """Return the stamp's name. Raises UsageError where a path is not there."""
    file = item.path.relative_to(ROOT)
    digest = hashlib.sha256(f"{describe_machine()} {item.nodeid.partition('@')[0]}".encode())
    read = {*paths, *ALWAYS_READ, file.parent.as_posix(), *find_imported(ROOT, file.as_posix())}
    for path in sorted(read):
        digest.update(hash_content(path))
    return digest.hexdigest()[:32]


@cache
def describe_machine() -> str:
    """Return what else decides whether a test passes: Python, the C++ compiler, what the CPU can do."""
    compiler = shutil.which("c++") or ""
    version = (
        subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
        if compiler
        else ""
    )
    return f"{sys.version} {version} {sorted(read_cpu_flags())}"


@cache
def hash_content(path: str) -> bytes:
    """Hash a file, or all files below a folder. Raises UsageError where it is not there."""
    if not (ROOT / path).exists():
        raise pytest.UsageError(f"reads({path!r}): there is no such file or folder; name one below {ROOT}")
    digest = hashlib.sha256()
    for file in list_files(ROOT / path):
        digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return digest.digest()


def list_files(path: Path) -> Iterator[Path]:
    """Yield a file, or those below a folder in order, but for hidden ones, bytecode and built libraries."""
    if path.is_file():
        yield path
        return
    left_out = {"__pycache__", "lib"} | (CHOOSES_TESTS if path == ROOT / "testing" else set())
    for child in sorted(path.iterdir()):
        if not child.name.startswith(".") and child.name not in left_out:
            yield from list_files(child)
