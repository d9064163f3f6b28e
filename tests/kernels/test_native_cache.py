"""What is in the private cache, or can't be: nothing of it ends a replica."""

import os
import shutil
import time
from pathlib import Path

import pytest

from millrace_kernels.native import build, cache, selection, trial
from millrace_kernels.native.errors import BuildError
from millrace_kernels.native.instruction_sets import InstructionSet

PORTABLE = InstructionSet.PORTABLE


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
    installed = cache.place(copy, build.PACKAGED, build.name_library(PORTABLE))
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
    monkeypatch.setattr(trial, "_try", lambda _: None)
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
    (tmp_path / f"{build.name_library(PORTABLE)}-0123.so").touch()
    monkeypatch.setattr(cache, "digest_of", refuse)
    with pytest.raises(BuildError, match="Permission denied"):
        build.find_library(PORTABLE, tmp_path)
