"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer: nothing outside the given memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace_kernels.native.build import build_library, find_compiler
from millrace_kernels.native.instruction_sets import InstructionSet, list_usable_sets, read_cpu_flags
from tests.kernels.libraries import READS_KERNELS

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1")


def run(library: Path, mode: str) -> subprocess.CompletedProcess[str]:
    runtime = subprocess.check_output([find_compiler(), "-print-file-name=libasan.so"], text=True).strip()
    settings = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "tests.kernels.sanitized_cases", str(library), mode],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )


FASTEST, *OTHERS = list_usable_sets(read_cpu_flags())
SETS = [
    pytest.param(FASTEST, marks=READS_KERNELS),
    *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS),
]


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", SETS)
def test_every_case_is_clean_and_a_step_too_far_is_found(
    tmp_path: Path, instruction_set: InstructionSet
) -> None:
    library = build_library(instruction_set, tmp_path, SANITIZERS)
    clean = run(library, "whole")
    assert clean.stdout == "clean\n", clean.stderr[-4000:]
    for mode in ("short-cache", "short-register", "short-tail"):
        found = run(library, mode).stderr
        assert "ERROR: AddressSanitizer" in found, mode
    assert "finish_row" in found, "a product's last columns, written as a part of a vector"
