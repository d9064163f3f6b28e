"""A load takes the memory of what it keeps, and of one matrix more: counted in a process for each form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import os, sys
import torch
from pathlib import Path
from safetensors.torch import save_file
from millrace_fit.quantization.rules import Quantization, Rule
from millrace_fit.quantization.scheme import Kind, Packing, Scheme
from millrace_fit.shard import whole
from millrace_kernels.native.weights.packing import NativePacker
from millrace_runtime.execution.weights.checkpoint import CheckpointWeights
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.models.model import Rows

ROWS, COLUMNS, NAMES = int(sys.argv[2]), 4096, ("q", "k", "v")
TYPES = {
    "F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8, "I32": torch.int32, "F32": torch.float32,
    "F16": torch.float16, "BF16": torch.bfloat16,
}
SCHEMES = {
    "FP8": Scheme(Kind.FP8, Packing.PLAIN),
    "FP8 in blocks": Scheme(Kind.FP8, Packing.PLAIN, 128, 128, scale="weight_scale_inv"),
    "INT8": Scheme(Kind.INT8, Packing.PLAIN),
    "INT8 in words": Scheme(Kind.INT8, Packing.COMPRESSED),
    "INT4": Scheme(Kind.INT4, Packing.COMPRESSED, group=128, has_zeros=True),
    "INT4 in any order": Scheme(Kind.INT4, Packing.COMPRESSED, group=128, is_ordered=True),
    "AWQ": Scheme(Kind.INT4, Packing.AWQ, group=128, has_zeros=True),
    "GPTQ": Scheme(Kind.INT4, Packing.GPTQ, group=128, has_zeros=True),
    "GPTQ v2": Scheme(Kind.INT4, Packing.GPTQ_V2, group=128, has_zeros=True),
}

def write(scheme, folder, rows):
    parts = [one for one in scheme.list_parts(rows, COLUMNS) if one.is_required]
    order = torch.arange(COLUMNS).flip(0) // 128
    tensors = {
        f"{name}.{one.ending}": order.int() if "g_idx" in one.ending
        else torch.ones(one.shapes[0], dtype=torch.float32).to(TYPES[one.types[0]])
        for name in NAMES for one in parts
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")

def load(scheme, folder, rows):
    quantization = Quantization("any", (Rule(None, scheme),))
    weights = CheckpointWeights(Reader(folder), NativePacker(torch.bfloat16), quantization)
    return weights.matrix({name: Rows(whole(rows)) for name in NAMES}, whole(COLUMNS))

def read_mib(key):
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0]) >> 10

torch.set_num_threads(1)
for number, (name, scheme) in enumerate(SCHEMES.items()):
    small, large = (Path(sys.argv[1], f"{number}-{size}") for size in ("small", "large"))
    write(scheme, small, 128)
    if not (child := os.fork()):
        write(scheme, large, ROWS)
        os._exit(0)
    os.waitpid(child, 0)
    if not (child := os.fork()):
        load(scheme, small, 128)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = read_mib("VmRSS")
        matrix = load(scheme, large, ROWS)
        file = (large / "model.safetensors").stat().st_size
        print(name, read_mib("VmHWM") - before, matrix.data.nbytes >> 20, file >> 20, sep=",", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    (large / "model.safetensors").unlink()
"""
ROWS = 6144
LARGEST = 24
"""MiB of one matrix, with each number of 8 or 4 bits in a byte."""
SLACK = 8
"""MiB: what packing some rows takes, and scales."""
EXACT = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""What is freed goes back to the system at once."""


@pytest.mark.reads("kernels", "runtime/millrace_fit", "runtime/millrace_runtime")
def test_a_load_takes_what_it_keeps_and_one_matrix_more(tmp_path: Path) -> None:
    """The pages of the mapped file count in a process's peak, though the kernel may drop them."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path, str(ROWS)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | EXACT,
    )
    lines = [line.split(",") for line in done.stdout.splitlines()]
    assert len(lines) == 9
    peaks = {name: int(grown) - int(kept) - int(file) for name, grown, kept, file in lines}
    assert {name: peak for name, peak in peaks.items() if peak > LARGEST + SLACK} == {}
