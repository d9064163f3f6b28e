"""What is in the private cache, or can't be: nothing of it ends a replica."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_kernels.native import abi, build, cache, selection, trial
from millrace_kernels.native.errors import BuildError, NativeError, PoolError
from millrace_kernels.native.instruction_sets import InstructionSet, read_cpu_flags

PORTABLE = InstructionSet.PORTABLE


@pytest.fixture(scope="session")
def good() -> Path:
    """A library that works."""
    return build.find_library(PORTABLE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty private cache, on a machine whose wheel brought nothing."""
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "nothing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.open_cache(cache.default_cache())


@pytest.fixture
def compiled(folder: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> list[InstructionSet]:
    """What was compiled, in an instant, into the private cache."""
    assert folder.is_dir()
    made: list[InstructionSet] = []

    def copy(_: str, instruction_set: InstructionSet, scratch: Path, __: tuple[str, ...]) -> Path:
        made.append(instruction_set)
        return Path(shutil.copy(good, scratch / "library.so"))

    monkeypatch.setattr(build, "_compile", copy)
    return made


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
def test_a_library_that_was_cut_short_is_made_again(compiled: list[InstructionSet], share: float) -> None:
    found = build.find_library(PORTABLE)
    data = found.read_bytes()
    os.truncate(found, int(len(data) * share))
    assert build.find_library(PORTABLE).read_bytes() == data
    assert len(compiled) == 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
def test_an_installed_library_that_was_cut_short_is_never_returned(
    compiled: list[InstructionSet], good: Path, share: float
) -> None:
    build.PACKAGED.mkdir()
    copy = Path(shutil.copy(good, build.PACKAGED / "copy"))
    installed = cache.place(copy, build.PACKAGED, build.library_stem(PORTABLE))
    assert build.find_library(PORTABLE) == installed
    os.truncate(installed, int(installed.stat().st_size * share))
    assert build.find_library(PORTABLE).parent != build.PACKAGED
    assert len(compiled) == 1


def test_a_library_of_other_bytes_is_never_returned(compiled: list[InstructionSet]) -> None:
    found = build.find_library(PORTABLE)
    data = bytearray(found.read_bytes())
    data[len(data) // 2] ^= 1
    found.write_bytes(data)
    assert build.find_library(PORTABLE) == found
    assert len(compiled) == 2
    assert build.find_library(PORTABLE) == found
    assert len(compiled) == 2


def test_another_compiler_or_machine_makes_another_file(
    compiled: list[InstructionSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {build.find_library(PORTABLE)}
    monkeypatch.setattr(build, "_run", lambda _: "c++ 99")
    found.add(build.find_library(PORTABLE))
    monkeypatch.setattr(build.platform, "libc_ver", lambda: ("glibc", "9"))
    found.add(build.find_library(PORTABLE))
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    found.add(build.find_library(PORTABLE))
    assert len(found) == len(compiled) == 4


@pytest.mark.usefixtures("compiled")
def test_without_a_compiler_what_one_made_before_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build.find_library(PORTABLE)
    monkeypatch.setenv("CXX", str(folder / "nothing"))
    assert build.find_library(PORTABLE) == made
    made.unlink()
    with pytest.raises(BuildError, match="install g"):
        build.find_library(PORTABLE)


@pytest.mark.usefixtures("compiled")
def test_where_a_new_compiler_fails_what_one_made_before_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build.find_library(PORTABLE)

    def fail(*_: object) -> Path:
        raise BuildError("stdint.h: no such file")

    monkeypatch.setattr(build, "_run", lambda _: "c++ 99")
    monkeypatch.setattr(build, "_compile", fail)
    assert build.find_library(PORTABLE) == made
    made.unlink()
    with pytest.raises(BuildError, match=r"stdint\.h"):
        build.find_library(PORTABLE)
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("compiled")
def test_what_is_in_use_is_not_old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = build.find_library(PORTABLE)
    trial.try_once(used)
    (mark,) = folder.glob("*.passed")
    for file in (used, mark):
        os.utime(file, (time.time() - cache.MONTH_SECONDS - 60,) * 2)
    trial.try_once(build.find_library(PORTABLE))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    build.find_library(PORTABLE)
    assert used.exists()
    assert mark.exists()


@pytest.mark.usefixtures("compiled")
def test_what_cannot_be_dropped_costs_no_library(folder: Path) -> None:
    for name in ("millrace-portable-0123.so", "0123.passed"):
        (folder / name).mkdir()
        os.utime(folder / name, (0, 0))
    old = folder / "millrace-portable-4567.so"
    old.touch()
    os.utime(old, (0, 0))
    assert build.find_library(PORTABLE).is_file()
    assert not old.exists()


@pytest.mark.usefixtures("compiled")
def test_a_build_drops_what_is_old(folder: Path) -> None:
    month, hour = cache.MONTH_SECONDS + 60, cache.HOUR_SECONDS + 60
    ages = {
        "millrace-portable-0123.so": month, "millrace-portable-4567-89.so": hour, "0123.passed": month,
        "4567.passed": hour, "millrace-avx2-0123.so": month, "tmpkilled": hour, "tmpbusy": 60,
    }  # fmt: skip
    for name, age in ages.items():
        file = folder / name
        file.mkdir() if name.startswith("tmp") else file.touch()
        os.utime(file, (time.time() - age,) * 2)
    made = build.find_library(PORTABLE)
    left = {"millrace-portable-4567-89.so", "4567.passed", "millrace-avx2-0123.so", "tmpbusy", made.name}
    assert {file.name for file in folder.iterdir()} == left


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc", None])
def test_a_cache_that_cannot_be_had_leaves_the_work_to_torch(
    place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "nothing")
    if place is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", place)
    path = selection.select_cpu_path()
    assert path.library is None
    assert "set XDG_CACHE_HOME" in path.reason


def test_a_folder_that_may_not_be_read_is_a_build_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(build, "PACKAGED", tmp_path)
    (tmp_path / f"{build.library_stem(PORTABLE)}-0123.so").touch()
    monkeypatch.setattr(cache, "digest_of", refuse)
    with pytest.raises(BuildError, match="Permission denied"):
        build.find_library(PORTABLE, tmp_path)


Stub = Callable[[str], Path]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """A library that does something as soon as it is loaded."""

    def make(body: str) -> Path:
        source, made = tmp_path / "stub.cpp", tmp_path / "stub.so"
        source.write_text(
            f"#include <fcntl.h>\nstatic __attribute__((constructor)) void begin() {{ {body} }}\n"
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
    monkeypatch.setattr(selection, "usable_sets", lambda _: list(files))
    monkeypatch.setattr(selection, "find_library", files.__getitem__)
    path = selection.select_cpu_path()
    assert path.library is not None
    assert path.reason.startswith("portable kernels")
    assert "ended a small case by SIG" in path.reason


@pytest.mark.usefixtures("folder")
def test_a_library_that_hangs_is_given_up(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What loads it here imports no torch: that alone may take longer than the limit."""
    loader, begun = tmp_path / "loader", tmp_path / "begun"
    loader.write_text(f"""#!/bin/sh\nexec {sys.executable} -c "import ctypes; ctypes.CDLL('$4')"\n""")
    loader.chmod(0o755)
    monkeypatch.setattr(trial.sys, "executable", str(loader))
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 5)
    trial.try_once(stub(""))
    with pytest.raises(NativeError, match="took longer than 5 s"):
        trial.try_once(stub(f'creat("{begun}", 0600); for (;;) asm volatile("");'))
    assert begun.exists()


@pytest.mark.usefixtures("folder")
def test_what_passed_is_not_tried_again_and_another_file_or_cpu_is(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.try_once(good)
    tried: list[Path] = []
    monkeypatch.setattr(trial, "_try", tried.append)
    trial.try_once(good)
    assert tried == []
    other = tmp_path / "other.so"
    other.write_bytes(good.read_bytes() + b"\0")
    trial.try_once(other)
    trial.try_once(other)
    assert tried == [other]
    flags = read_cpu_flags() | {"another"}
    monkeypatch.setattr(trial, "read_cpu_flags", lambda: flags)
    trial.try_once(good)
    assert tried == [other, good]


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
    empty = stub("")
    for _ in range(2):
        with pytest.raises(NativeError):
            trial.try_once(empty)
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
    monkeypatch.setattr(selection, "usable_sets", lambda _: [InstructionSet.AVX2, PORTABLE])
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGED", tmp_path)
    build.build_library(PORTABLE, tmp_path)
    monkeypatch.setattr(selection, "try_once", pytest.fail)
    assert selection.load_library(PORTABLE).sample_bytes(50) > 0
