import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.libraries import READS_KERNELS


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "89", "90", pytest.param("100", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "dtype", [pytest.param("bf16", marks=READS_KERNELS), pytest.param("fp32", marks=pytest.mark.long)]
)
def test_every_kernel_compiles_for_a_gpu(tmp_path: Path, dtype: str, capability: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_for_gpu.py")
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, script, dtype, capability],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
