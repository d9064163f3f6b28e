"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer: nothing outside what was given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace_kernels.native.build import build_library, find_compiler
from millrace_kernels.native.instruction_sets import InstructionSet, read_cpu_flags, usable_sets

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1")
PROGRAM = """
import sys
from pathlib import Path
import torch
from millrace_kernels.native.abi import Library
from millrace_kernels.native.selfcheck import BOUNDS, measure_error
from tests.kernels.test_native import SHAPES
library = Library(Path(sys.argv[1]))
for name, case in SHAPES.items():
    for (dtype, form), bound in BOUNDS.items():
        assert measure_error(case, library, dtype, form) < bound, (name, dtype, form)
print("clean")
"""


# Caches that end too soon: kernels may read a vector past the last block.
TOO_SHORT = "import millrace_kernels.native.selfcheck as selfcheck\nselfcheck.SLACK = 1\n" + PROGRAM


def run(program: str, library: Path) -> subprocess.CompletedProcess[str]:
    runtime = subprocess.check_output([find_compiler(), "-print-file-name=libasan.so"], text=True).strip()
    settings = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, str(library)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", {usable_sets(read_cpu_flags())[0], InstructionSet.PORTABLE})
def test_every_case_is_clean_and_a_read_too_far_is_found(
    tmp_path: Path, instruction_set: InstructionSet
) -> None:
    library = build_library(instruction_set, tmp_path, SANITIZERS)
    clean = run(PROGRAM, library)
    assert clean.stdout == "clean\n", clean.stderr[-4000:]
    assert "ERROR: AddressSanitizer" in run(TOO_SHORT, library).stderr
