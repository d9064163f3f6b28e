"""A former commit runs from its own files."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.runtime import former
from benchmarks.runtime.engines import EngineSpec
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import FORMER, OURS

NAME_FILES = "import millrace_kernels as k, benchmarks.runtime as b; print(k.__file__, b.__file__)"


def test_a_former_commit_and_its_children_import_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former, "BUILD", ("-c", "import millrace_kernels; open('built', 'w')"))
    made = former.prepare_former(former.read_former_commit("HEAD"), tmp_path / "former")
    assert (made.folder / "built").exists()
    spec = made.replace(
        EngineSpec(OURS, "bf16", (sys.executable, "-c", NAME_FILES), {"OMP_NUM_THREADS": "1"})
    )
    assert (spec.name, spec.environment["OMP_NUM_THREADS"]) == (FORMER, "1")
    said = subprocess.run(
        spec.command, env=dict(spec.environment), cwd=former.ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [
        str(made.folder / name)
        for name in ("kernels/millrace_kernels/__init__.py", "benchmarks/runtime/__init__.py")
    ]


def test_a_library_that_can_not_be_compiled_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former, "BUILD", ("-c", "raise SystemExit('no compiler')"))
    with pytest.raises(EngineError, match="can't be compiled: no compiler"):
        former.prepare_former(former.read_former_commit("HEAD"), tmp_path / "former")
