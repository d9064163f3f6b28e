"""The threads that run a step, and workers that run one together: races, refusals, and a forked process."""

import multiprocessing
import subprocess
from pathlib import Path

import pytest

import millrace_kernels
from millrace_kernels.native import abi
from millrace_kernels.native.build import find_compiler
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.selection import select_cpu_path
from tests.kernels.libraries import READS_KERNELS

KERNELS = Path(millrace_kernels.__file__).parent
HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O2", "-pthread", "-DMILLRACE_ISA=check", "-I", str(KERNELS))


@pytest.mark.parametrize(
    "sanitizer",
    [
        pytest.param((), id="plain"),
        pytest.param(("-fsanitize=thread",), id="thread sanitizer", marks=READS_KERNELS),
    ],
)
@pytest.mark.parametrize("name", ["pool_check", "exchange_check"])
def test_every_unit_is_done_once_after_the_operation_before_and_every_part_is_read_as_written(
    tmp_path: Path, sanitizer: tuple[str, ...], name: str
) -> None:
    program = tmp_path / name
    source = str(HERE / f"{name}.cpp")
    subprocess.run([find_compiler(), *FLAGS, *sanitizer, source, "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stdout + done.stderr[-2000:]


@pytest.fixture
def library() -> abi.Library:
    found = select_cpu_path().library
    assert found is not None
    return found


def test_a_pool_that_finds_no_memory_is_refused(library: abi.Library) -> None:
    with pytest.raises(NativeError, match="can't be started"):
        library.new_pool(2, 1 << 60)


def test_a_forked_process_ends_although_it_has_none_of_the_threads(library: abi.Library) -> None:
    pool = library.new_pool(2, 64)
    child = multiprocessing.get_context("fork").Process(target=library.free_pool, args=(pool,))
    child.start()
    child.join(20)
    has_ended = child.exitcode == 0
    child.kill()
    library.free_pool(pool)
    assert has_ended


def test_a_step_without_operations_ends(library: abi.Library) -> None:
    pool = library.new_pool(2, 64)
    program, step = abi.Program(), abi.Step()
    for _ in range(3):
        library.run(pool, program, step)
    assert program.progress == 0
    library.free_pool(pool)
