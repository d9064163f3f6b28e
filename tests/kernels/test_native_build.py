import os
import stat
import subprocess
from pathlib import Path

import pytest

from millrace_kernels.native import build, cache, instruction_sets, selection
from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import BuildError, NativeError
from millrace_kernels.native.instruction_sets import (
    InstructionSet,
    list_buildable_sets,
    list_usable_sets,
    read_cpu_flags,
)
from tests.kernels.libraries import READS_KERNELS, find_once

PORTABLE = InstructionSet.PORTABLE


def put(folder: Path, instruction_set: InstructionSet, data: bytes) -> Path:
    """Place a library of these bytes as a build does."""
    made = folder / "made"
    made.write_bytes(data)
    return cache.place(made, folder, build.name_library(instruction_set))


def sets_in(folder: Path) -> set[str]:
    """Return the stems of the intact libraries, and the names of all other files."""
    return {file.stem.rpartition("-")[0] if cache.is_intact(file) else file.name for file in folder.iterdir()}


def test_a_library_is_built_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "nothing")
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))
    folder = tmp_path / "cache"
    made = build.find_library(PORTABLE, folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("it was compiled again"))
    assert build.find_library(PORTABLE, folder) == made
    assert [file.name for file in folder.iterdir()] == [made.name]


def test_other_sources_or_flags_are_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {build.name_library(one) for one in InstructionSet}
    assert len(before) == len(InstructionSet)
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O1"))
    assert build.name_library(PORTABLE) not in before
    monkeypatch.setattr(build, "sources", lambda: [Path(build.__file__)])
    assert build.name_library(PORTABLE) not in before


def test_a_folder_that_others_can_write_is_not_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "nothing")
    put(tmp_path, PORTABLE, b"anything")
    tmp_path.chmod(0o777)
    with pytest.raises(BuildError, match="other users can write to"):
        build.find_library(PORTABLE, tmp_path)


def test_without_a_compiler_or_a_library_torch_computes_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "nothing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    path = selection.select_cpu_path()
    assert path.library is None
    assert path.reason.startswith("torch computes, slowly, because no native kernels work: ")
    assert "install g++" in path.reason


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho no such thing as $1 >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match=r"failed: no such thing as -std=c\+\+17"):
        build.build_library(PORTABLE, tmp_path)
    assert os.listdir(tmp_path) == ["broken"]  # noqa: PTH208


def test_a_file_that_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PACKAGED", tmp_path)
    for one in InstructionSet:
        put(tmp_path, one, b"some text")
    path = selection.select_cpu_path()
    assert path.library is None
    assert "can't be loaded" in path.reason


def test_instructions_that_the_cpu_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "read_cpu_flags", lambda: frozenset({"avx2", "fma", "amx_tile"}))
    with pytest.raises(NativeError, match="lacks avx512bw, avx512dq, avx512f, avx512vl, which the avx512 "):
        selection.select_cpu_path("avx512")
    assert selection.select_cpu_path("torch").library is None


def test_amx_is_left_out_where_the_kernel_does_not_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(instruction_sets, "_may_use_tiles", lambda: False)
    (tmp_path / "cpuinfo").write_text("flags : fma amx_tile amx_bf16 avx2\n")
    assert list_usable_sets(read_cpu_flags(tmp_path / "cpuinfo"))[0] is InstructionSet.AVX2
    monkeypatch.setattr(instruction_sets, "_may_use_tiles", lambda: True)
    assert "amx_tile" in read_cpu_flags(tmp_path / "cpuinfo")


def test_where_linux_refuses_amx_both_sentences_say_so(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = InstructionSet.AMX.cpu_flags
    monkeypatch.setattr(instruction_sets, "_list_cpu_flags", lambda _: flags)
    monkeypatch.setattr(instruction_sets, "_may_use_tiles", lambda: False)
    monkeypatch.setattr(selection, "load_library", lambda _: Library(good))
    refused = "Linux does not let this process use AMX"
    found = selection.select_cpu_path().reason
    assert found == f"avx512_bf16 kernels, the fastest that can run here; {refused}"
    with pytest.raises(NativeError, match=f"^{refused}, which the amx kernels need$"):
        selection.select_cpu_path("amx")


def test_building_ahead_makes_what_lacks_and_removes_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[InstructionSet] = []

    def build_library(one: InstructionSet, folder: Path) -> None:
        made.append(one)
        put(folder, one, b"some text")

    monkeypatch.setattr(build, "build_library", build_library)
    (tmp_path / "millrace-avx2-0123.so").touch()
    assert build.main(["--to", str(tmp_path)]) == build.main(["--to", str(tmp_path)]) == 0
    assert made == list_buildable_sets()
    assert sets_in(tmp_path) == {build.name_library(one) for one in made}


def test_building_ahead_replaces_a_truncated_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(put(tmp_path, PORTABLE, b"some text"), 4)
    monkeypatch.setattr(build, "build_library", lambda one, folder: put(folder, one, b"another text"))
    assert build.build_ahead(tmp_path, [PORTABLE]) == []
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"another text"]


def test_a_compiler_that_lacks_one_instruction_set_builds_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "old"
    compiler.write_text(
        "#!/bin/sh\n"
        'for word; do [ "$word" = -mavx512bf16 ] && echo "unrecognized option" >&2 && exit 1; done\n'
        'while [ "$1" != -o ]; do shift; done; touch "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(instruction_sets.platform, "machine", lambda: "x86_64")
    folder = tmp_path / "lib"
    assert build.main(["--to", str(folder)]) == 1
    assert "avx512_bf16: the C++ compiler failed: unrecognized option" in capsys.readouterr().err
    others = set(InstructionSet) - {InstructionSet.AVX512_BF16, InstructionSet.AMX}
    assert sets_in(folder) == {build.name_library(one) for one in others}


def test_building_here_goes_on_past_what_the_compiler_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_library(one: InstructionSet, folder: Path) -> None:
        if one is InstructionSet.AMX:
            raise BuildError("unrecognized option")
        put(folder, one, b"some text")

    monkeypatch.setattr(build, "build_library", build_library)
    monkeypatch.setattr(build, "read_cpu_flags", lambda: InstructionSet.AMX.cpu_flags)
    assert build.main(["--here", "--to", str(tmp_path)]) == 0
    assert sets_in(tmp_path) == {build.name_library(InstructionSet.AVX512_BF16)}


@READS_KERNELS
def test_amx_compiles_on_every_cpu_whose_compiler_knows_it(tmp_path: Path) -> None:
    """Where the CPU has AMX, the file is the one that the other tests load."""
    if InstructionSet.AMX not in list_buildable_sets():
        pytest.skip("AMX is x86's")
    flags = InstructionSet.AMX.compiler_flags
    command = [build.find_compiler(), *flags, "-x", "c++", "-c", os.devnull, "-o", str(tmp_path / "empty.o")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this compiler does not know AMX")
    assert cache.is_intact(find_once(InstructionSet.AMX))


def test_what_is_no_x86_builds_the_portable_set_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets.platform, "machine", lambda: "aarch64")
    assert list_buildable_sets() == list_usable_sets(read_cpu_flags()) == [PORTABLE]


def test_building_ahead_without_a_compiler_fails_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    assert build.main(["--here", "--to", str(tmp_path)]) == 1
    assert "install g++" in capsys.readouterr().err


def test_the_fastest_comes_first() -> None:
    avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "avx2"}
    assert list_usable_sets(avx512)[0] is InstructionSet.AVX512
    assert list_usable_sets(avx512 | {"avx512_vnni"})[0] is InstructionSet.AVX512_VNNI
    assert list_usable_sets({"avx2", "fma"})[0] is InstructionSet.AVX2
    assert list_usable_sets([]) == [PORTABLE]
    bfloat16 = avx512 | {"avx512_bf16", "avx512_vnni"}
    assert list_usable_sets(bfloat16)[0] is InstructionSet.AVX512_BF16
    assert list_usable_sets(bfloat16 | {"amx_tile", "amx_bf16"}) == list(InstructionSet)
