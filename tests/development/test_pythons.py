from pathlib import Path

import pytest

from development import pythons


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python: its PATH is `bin`, its pyenv is `pyenv`."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def put_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_path_comes_before_pyenv_and_a_shim_with_nothing_behind_it_is_passed_over(machine: Path) -> None:
    put_program(machine / "bin/python3.12", "exit 127")
    behind = put_program(machine / "pyenv/versions/3.12.1/bin/python", "echo 3.12")
    assert pythons.find_python("3.12") == behind
    found = put_program(machine / "bin/python3.12", "echo 3.12")
    assert pythons.find_python("3.12") == found


def test_a_python_that_is_not_there_is_named_with_what_to_install(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_program(machine / "bin/python3.13", "echo 3.12")
    assert pythons.main(["3.13"]) == 1
    assert capsys.readouterr().out == (
        "pythons: no Python 3.13 on PATH or in pyenv; write: pyenv install 3.13\n"
    )


@pytest.mark.parametrize(
    ("results", "status"),
    [([True, None], 0), ([True, False], 1), ([None, None], 1)],
    ids=["one is missing", "one fails", "none is there"],
)
def test_one_python_must_pass_and_none_may_fail(
    results: list[bool | None], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(results)
    monkeypatch.setattr(pythons, "judge", lambda _version: next(left))
    assert pythons.main(["3.12", "3.13"]) == status


def test_a_failed_step_ends_it_and_the_environment_is_removed(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pythons, "ENVIRONMENTS", machine / "environments")
    broken = put_program(machine / "bin/python3.12", '/bin/mkdir -p "$4"; exit 1')
    assert not pythons.run_fast_tests("3.12", broken)
    assert list((machine / "environments").iterdir()) == []
