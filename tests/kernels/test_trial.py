"""A library is tried before it serves: one that crashes, hangs or gets no threads ends no replica."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_kernels.native import abi, build, cache, selection, trial
from millrace_kernels.native.errors import NativeError, PoolError
from millrace_kernels.native.instruction_sets import InstructionSet, read_cpu_flags

PORTABLE = InstructionSet.PORTABLE

Stub = Callable[[str], Path]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """A library that does something as soon as it is loaded."""

    def make(body: str) -> Path:
        source, made = tmp_path / "stub.cpp", tmp_path / "stub.so"
        source.write_text(
            "#include <fcntl.h>\n#include <unistd.h>\n"
            f"static __attribute__((constructor)) void begin() {{ {body} }}\n"
        )
        subprocess.run([build.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        return made

    return make


@pytest.mark.usefixtures("folder")
def test_auto_goes_on_past_a_library_that_crashes(
    stub: Stub, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = stub("__builtin_trap();")
    files = {InstructionSet.AVX2: crashing, PORTABLE: good}
    monkeypatch.setattr(selection, "list_usable_sets", lambda _: list(files))
    monkeypatch.setattr(selection, "find_library", files.__getitem__)
    path = selection.select_cpu_path()
    assert path.library is not None
    assert path.reason.startswith("portable kernels")
    assert "ended a small case by SIG" in path.reason


@pytest.mark.usefixtures("folder")
def test_a_library_that_hangs_is_given_up(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What loads it here is no Python: to start that alone may take longer than the limit."""
    loader, begun = tmp_path / "loader", tmp_path / "begun"
    loader.write_text('#!/bin/sh\nLD_PRELOAD="$4" exec true\n')
    loader.chmod(0o755)
    monkeypatch.setattr(trial.sys, "executable", str(loader))
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 2)
    trial.try_once(stub(""))
    with pytest.raises(NativeError, match="took longer than 2 s"):
        trial.try_once(stub(f'creat("{begun}", 0600); for (;;) pause();'))
    assert begun.exists()


@pytest.mark.usefixtures("folder")
def test_what_passed_is_not_tried_again_and_another_file_or_cpu_is(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []
    monkeypatch.setattr(trial, "_try", tried.append)
    trial.try_once(good)
    trial.try_once(good)
    assert tried == [good]
    other = tmp_path / "other.so"
    other.write_bytes(good.read_bytes() + b"\0")
    trial.try_once(other)
    trial.try_once(other)
    assert tried == [good, other]
    flags = read_cpu_flags() | {"another"}
    monkeypatch.setattr(trial, "read_cpu_flags", lambda: flags)
    trial.try_once(good)
    assert tried == [good, other, good]


def test_without_a_private_cache_a_library_is_tried_at_every_start(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    tried: list[Path] = []
    monkeypatch.setattr(trial, "_try", tried.append)
    trial.try_once(good)
    trial.try_once(good)
    assert tried == [good, good]


def test_a_failure_leaves_no_mark(folder: Path, stub: Stub) -> None:
    with pytest.raises(NativeError):
        trial.try_once(stub(""))
    assert list(folder.glob("*.passed")) == []


def refuse_pool(*_: object) -> abi.Pool:
    raise PoolError("2 threads can't be started: raise the limits")


def test_a_limit_on_threads_blames_no_library(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[InstructionSet] = []

    def load(instruction_set: InstructionSet) -> abi.Library:
        loaded.append(instruction_set)
        selection.check_library(library := abi.Library(good))
        return library

    monkeypatch.setattr(abi.Library, "new_pool", refuse_pool)
    monkeypatch.setattr(selection, "list_usable_sets", lambda _: [InstructionSet.AVX2, PORTABLE])
    monkeypatch.setattr(selection, "load_library", load)
    path = selection.select_cpu_path()
    assert (path.library, loaded) == (None, [InstructionSet.AVX2])
    assert path.reason == "torch computes, slowly: 2 threads can't be started: raise the limits"


@pytest.mark.usefixtures("folder")
def test_a_trial_without_threads_blames_no_library(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(abi.Library, "new_pool", refuse_pool)
    monkeypatch.setattr(trial.signal, "alarm", lambda _: 0)
    monkeypatch.setattr(trial.resource, "setrlimit", lambda *_: None)
    status, said = trial.main([str(good)]), capsys.readouterr().err.strip()
    loader = tmp_path / "loader"
    loader.write_text(f'#!/bin/sh\necho "{said}" >&2; exit {status}\n')
    loader.chmod(0o755)
    monkeypatch.setattr(trial.sys, "executable", str(loader))
    with pytest.raises(PoolError, match="2 threads can't be started"):
        trial.try_once(good)


def test_an_installed_library_is_not_tried_in_a_process_of_its_own(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGED", tmp_path)
    cache.place(Path(shutil.copy(good, tmp_path)), tmp_path, build.name_library(PORTABLE))
    monkeypatch.setattr(selection, "try_once", pytest.fail)
    assert selection.load_library(PORTABLE).sample_bytes(50) > 0
