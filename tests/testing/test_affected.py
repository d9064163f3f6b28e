"""A change chooses every test that it can turn red, by imports and by what these do not show."""

from pathlib import Path

import pytest

from testing.affected.__main__ import list_files
from testing.affected.choose import Choice, choose_tests, is_everything
from testing.affected.unseen import SMOKE, list_readers

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "runtime/package/inner.py": "",
    "runtime/package/outer.py": "from package import inner",
    "runtime/package/other.py": "",
    "tests/part/conftest.py": "import shared.given",
    "shared/given.py": "",
    "tests/part/test_outer.py": "def test():\n    from package.outer import thing",
    "tests/part/golden/page.txt": "",
    "tests/fetch/test_command.py": "",
    "e2e/test_path.py": "",
    "e2e/test_other.py": "",
    "e2e/service.py": "",
    "runtime/millrace_fetch/plan.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "units", "end_to_end"),
    [
        ("runtime/package/inner.py", ["tests/part/test_outer.py", "tests/fetch/test_command.py"], []),
        ("shared/given.py", ["tests/part/test_outer.py", "tests/fetch/test_command.py"], []),
        ("tests/part/conftest.py", ["tests/part/test_outer.py"], []),
        ("tests/part/golden/page.txt", ["tests/part/test_outer.py"], []),
        ("runtime/millrace_fetch/plan.py", ["tests/fetch/test_command.py"], []),
        ("e2e/test_other.py", [], ["e2e/test_other.py"]),
        ("e2e/service.py", [], []),
        ("runtime/package/deleted.py", ["tests/part/test_outer.py", "tests/fetch/test_command.py"], []),
        ("tests/part/conftest_deleted.py", ["tests/part/test_outer.py", "tests/fetch/test_command.py"], []),
    ],
)
def test_a_change_chooses_what_it_can_turn_red(
    project: Path, changed: str, units: list[str], end_to_end: list[str]
) -> None:
    found = choose_tests(project, FILES, [changed])
    assert (list(found.units), list(found.end_to_end)) == (units, [*end_to_end, SMOKE])


def test_a_change_of_nothing_that_is_tested_chooses_nothing(project: Path) -> None:
    assert choose_tests(project, FILES, ["CHANGELOG.md"]) == Choice((), ())


def test_no_file_of_this_repository_is_unknown() -> None:
    """A file that no line of the table knows runs everything: only what decides everything may do that."""
    unknown = {file for file in list_files() if list_readers([file]) == {"tests"}}
    assert [file for file in unknown if "/" in file and not file.startswith("testing/")] == []


def test_this_repositorys_own_imports_are_read() -> None:
    files = list_files()
    drain = choose_tests(ROOT, files, ["operator/millrace_operator/scaling/drain.py"])
    assert "tests/operator/scaling/test_drain.py" in drain.units
    assert not is_everything(drain, files)
