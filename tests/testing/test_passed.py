"""A test that reads what did not change runs once; it runs again where that changes, and where it failed."""

import subprocess
import sys
from pathlib import Path

import pytest

from testing import passed

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import pathlib
from testing import passed
passed.ROOT = pathlib.Path(__file__).parent
passed.ALWAYS_READ = ()
"""
TESTS = """
import pathlib
import pytest
import parts.outer

@pytest.mark.reads("source")
@pytest.mark.parametrize("word", ["right", "wrong"])
def test_word(word):
    assert word in pathlib.Path("source/file").read_text()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_source.py").write_text(TESTS)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "outer.py").write_text("from parts import inner")
    (tmp_path / "parts" / "inner.py").write_text("")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("right")
    return tmp_path


def run(project: Path, *flags: str) -> str:
    """Return the run's last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "testing.passed", "-p", "no:cacheprovider", *flags]
    environment = {
        "PYTHONPATH": f"{ROOT}:{project}",
        "MILLRACE_CACHE": str(project / "cache"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [*command, "checks"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip().splitlines()[-1].partition(" in ")[0]


def test_what_passed_runs_again_where_its_sources_change_and_where_that_is_asked_for(project: Path) -> None:
    assert run(project) == "1 failed, 1 passed"
    assert run(project) == "1 failed, 1 skipped"
    assert run(project, "--again") == "1 failed, 1 passed"
    (project / "source" / "file").write_text("right, not wrong")
    assert run(project) == "2 passed"
    assert run(project) == "2 skipped"
    (project / "checks" / "conftest.py").write_text("")
    assert run(project) == "2 passed"
    (project / "parts" / "inner.py").write_text("x = 1")  # imported by what the test imports
    assert run(project) == "2 passed"
    assert run(project) == "2 skipped"


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="there is no such file or folder"):
        passed.hash_content("no/such/folder")
