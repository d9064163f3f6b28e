"""`python -m benchmarks.gpu.sampling_sweep`: the time of draws by the tokens and warps of a program.

Its winner belongs into `millrace_kernels/sampling/gpu/triton_shape.py`. Each line compiles the kernels again.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.arena import Arena
from benchmarks.gpu.cases import OPERATIONS
from benchmarks.gpu.device import Device, measure_seconds, open_device
from millrace_kernels.sampling.gpu import triton_shape
from millrace_kernels.sampling.gpu.triton_shape import SHAPE, Shape

CHUNKS = ((2048, 4), (2048, 8), (4096, 4), (4096, 16), (8192, 8), (8192, 16), (16384, 16), (32768, 16))
SEARCHED = ((512, 8), (1024, 16))
SHAPES = (
    SHAPE,
    *(SHAPE._replace(chunk=chunk, chunk_warps=warps) for chunk, warps in CHUNKS),
    *(SHAPE._replace(candidates=candidates, draw_warps=warps) for candidates, warps in SEARCHED),
)
DRAWS = ((64, "mixed"), (64, "plain"), (64, "cut"), (64, "flat"), (1, "plain"))


def measure_shape(device: Device, shape: Shape, *, is_dry_run: bool) -> Iterator[float]:
    """Yield the microseconds of each kind of draws, and of the log-probabilities, with such programs."""
    triton_shape.SHAPE = shape
    vocabulary, rounds, most = (199, 1, 1) if is_dry_run else (128256, 20, 64)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("recorded_sampling", {"rows": min(rows, most), "asks": asks}) for rows, asks in DRAWS
    ]
    for name, facts in (*asked, ("top_logprobs", {"rows": most, "number": 5})):
        operation = OPERATIONS[name]
        call = operation.make(Arena(device.torch_device), torch.float32, vocabulary=vocabulary, **facts)
        run = partial(operation.launch(), *call.arguments)
        yield statistics.median(measure_seconds(device, run, rounds)) * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each shape as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny, on the CPU: its times mean nothing")
    is_dry_run = parser.parse_args(arguments).dry_run
    device = open_device(is_dry_run=is_dry_run)
    print("chunk warps candidates warps:", *(f"{rows} {asks}," for rows, asks in DRAWS), "64 logprobs (us)")
    for shape in SHAPES[:1] if is_dry_run else SHAPES:
        told = f"{shape.chunk:5} {shape.chunk_warps:2} {shape.candidates:5} {shape.draw_warps:2}:"
        with torch.inference_mode():
            figures = measure_shape(device, shape, is_dry_run=is_dry_run)
            print(told, *(f"{figure:9.1f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
