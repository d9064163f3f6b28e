import subprocess
import sys

import torch

from millrace_kernels.device_kernels import QueryRows, select_kernels
from millrace_kernels.paged_attention.tiled import TiledAttention
from tests.kernels.libraries import READS_KERNELS


def test_a_cpu_gets_the_tiled_attention() -> None:
    ends = torch.tensor([0, 3])
    rows = QueryRows([0, 3], [3], ends, ends[1:], torch.tensor([0]))
    plan = select_kernels(torch.device("cpu")).plan_attention
    assert isinstance(plan(rows, torch.zeros((1, 1), dtype=torch.int64), 1, 16), TiledAttention)


@READS_KERNELS
def test_choosing_for_a_cpu_loads_no_triton() -> None:
    code = (
        "import sys, torch; from millrace_kernels.device_kernels import select_kernels;"
        "select_kernels(torch.device('cpu')); assert not [m for m in sys.modules if 'triton_kernel' in m]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
