"""The environment and the cluster's parts are made side by side; a failure of the parts is said at once."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from development import bootstrap
from e2e.cluster.errors import BuildFailedError
from e2e.cluster.progress import Say

pytestmark = pytest.mark.reads("development", "e2e/cluster")


class Makers:
    """Stand in for what installs the environment and for what builds the parts."""

    def __init__(self) -> None:
        self.can_install = threading.Event()
        self.end_parts: Callable[[], None] = lambda: None

    def install(self, say: Say) -> None:
        assert self.can_install.wait(10)
        say("venv: done")

    def build(self, _: Say) -> None:
        self.end_parts()


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> Makers:
    found = Makers()
    monkeypatch.setattr(bootstrap, "check_before", lambda _: None)
    monkeypatch.setattr(bootstrap, "install_environment", found.install)
    monkeypatch.setattr(bootstrap, "get_programs", found.build)
    return found


def fail() -> None:
    raise BuildFailedError("etcd", "no compiler", Path("build.log"))


def test_a_failure_of_the_parts_is_said_before_the_environment_is_there(makers: Makers) -> None:
    makers.end_parts = fail
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "no compiler" in line:
            makers.can_install.set()

    with pytest.raises(BuildFailedError, match="no compiler"):
        bootstrap.bootstrap(say)
    assert [line.partition(":")[0] for line in said] == ["failed", "venv"]


def test_a_failure_after_the_environment_is_there_ends_the_command(
    makers: Makers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = threading.Event()
    monkeypatch.setattr(bootstrap, "install_environment", lambda _: installed.set())

    def fail_last() -> None:
        assert installed.wait(10)
        fail()

    makers.end_parts = fail_last
    assert bootstrap.main([]) == 1
    assert "no compiler" in capsys.readouterr().out.splitlines()[-1]


def test_an_interrupt_is_one_line(makers: Makers, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        makers.can_install.set()
        raise KeyboardInterrupt

    makers.end_parts = interrupt
    assert bootstrap.main([]) == 130
    assert capsys.readouterr().out.splitlines()[-1] == "interrupted; what is made already is kept"


def test_a_missing_compiler_is_said_before_anything_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(bootstrap, "check_machine", lambda *_, **__: None)
    said: list[str] = []
    bootstrap.check_before(said.append)
    assert said[0].startswith("up: without a C++ compiler replicas compute with torch, slowly; on Debian")
    monkeypatch.delenv("CXX")
    bootstrap.check_before(said.append)
    assert not any("compiler" in line for line in said[1:])
