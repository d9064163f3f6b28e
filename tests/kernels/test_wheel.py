"""What the wheel brings. The compiler is a stand-in: other tests show what the real one makes."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from development.proxies import outside_environment
from millrace_kernels.native import build
from millrace_kernels.native.instruction_sets import list_buildable_sets

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", "operator", "runtime", "kernels")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {Path(path).name for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
COMPILER = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; echo made > "$2"\n'
pytestmark = [pytest.mark.slow, pytest.mark.reads(*PARTS, "development/proxies.py", "tests/kernels")]


def clone_into(folder: Path) -> Path:
    for part in PARTS:
        source, target = ROOT / part, folder / "clone" / part
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "lib"))
        else:
            shutil.copy(source, target)
    return folder / "clone"


def make_wheel(clone: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    compiler = clone / "compiler"
    compiler.write_text(script)
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(clone / "dist"), str(clone)]
    environment = {**outside_environment(), "CXX": str(compiler), **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel by a compiler that works."""
    clone = clone_into(tmp_path_factory.mktemp("wheel"))
    done = make_wheel(clone, COMPILER, MILLRACE_REQUIRE_KERNELS="1")
    assert done.returncode == 0, done.stderr
    (made,) = (clone / "dist").glob("*.whl")
    return made


def test_a_wheel_holds_a_library_for_each_instruction_set(wheel: Path) -> None:
    assert "-none-any" not in wheel.name
    libraries = {
        name.rpartition("/")[2].rpartition("-")[0]
        for name in zipfile.ZipFile(wheel).namelist()
        if name.endswith(".so")
    }
    assert libraries == {build.name_library(one) for one in list_buildable_sets()}


def test_a_wheel_holds_the_shipped_model_and_nothing_of_its_training(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    demo = "millrace_runtime/demo/"
    assert {name.removeprefix(demo) for name in names if name.startswith(demo)} == {
        f"stories/{path.name}" for path in (ROOT / "runtime" / demo / "stories").iterdir()
    }
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, "millrace-0.1.0.dist-info"}


def test_a_wheel_without_kernels_is_made_unless_they_are_required(tmp_path: Path) -> None:
    clone = clone_into(tmp_path)
    broken = "#!/bin/sh\necho no such option >&2; exit 1\n"
    done = make_wheel(clone, broken, MILLRACE_REQUIRE_KERNELS="1")
    assert done.returncode != 0
    assert "kernels could not be compiled: " in done.stdout + done.stderr
    assert make_wheel(clone, broken).returncode == 0
    (wheel,) = (clone / "dist").glob("*.whl")
    assert wheel.name.endswith("-none-any.whl")
