"""Making the environment: whatever fails ends the command, with a line that says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from development import bootstrap, environment
from e2e.cluster.errors import BuildFailedError
from e2e.cluster.progress import Say
from e2e.cluster.virtual_environment import make_environment

pytestmark = pytest.mark.reads("development", "e2e/cluster")


@pytest.fixture(autouse=True)
def empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment, "VENV", tmp_path / "venv")
    monkeypatch.setattr(environment, "STAMP", tmp_path / "venv" / ".installed")
    return tmp_path / "venv"


def test_a_python_without_pip_is_refused_before_anything_is_made(
    empty_environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == "ensurepip" else name)
    for command in (environment.main, lambda: bootstrap.main([])):
        assert command() == 1
        assert "sudo apt-get install python3-venv" in capsys.readouterr().out
    assert not empty_environment.exists()


def test_an_environment_that_was_half_made_is_made_anew(empty_environment: Path) -> None:
    python = empty_environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert not environment.has_pip()
    make_environment(empty_environment, "venv")
    assert environment.has_pip()
    assert (
        subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0
    )


def test_a_pip_of_another_python_is_none(empty_environment: Path) -> None:
    pip = empty_environment / "lib" / "python3.10" / "site-packages" / "pip"
    pip.mkdir(parents=True)
    (pip / "__main__.py").touch()
    assert not environment.has_pip()


def fail_to_install(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(_: Say) -> None:
        raise failure

    monkeypatch.setattr(bootstrap, "install_environment", fail)
    monkeypatch.setattr(bootstrap, "check_before", lambda _: None)
    monkeypatch.setattr(bootstrap, "get_programs", lambda _: None)


@pytest.mark.parametrize("failure", [BuildFailedError("venv", "odd", Path("log")), OSError(28, "No space")])
def test_what_ends_the_installer_ends_the_command(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_to_install(monkeypatch, failure)
    assert bootstrap.main([]) == 1
    assert capsys.readouterr().out == f"failed: {failure}\n"


@pytest.mark.parametrize("failure", [SystemExit(1), ValueError("a bug of ours")])
def test_what_nobody_expects_ends_the_command_too(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's venv calls sys.exit, which a thread of its own would swallow."""
    fail_to_install(monkeypatch, failure)
    with pytest.raises(type(failure)):
        bootstrap.main([])
