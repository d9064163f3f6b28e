"""What the device does at best: the limits that ratios are over, measured in the same process."""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import OPERATIONS
from benchmarks.gpu.device import measure_seconds
from benchmarks.gpu.rows import Figure, Row, at_most

ROUNDS = 10
TRITON_MICROSECONDS = at_most(6)


def measure_bandwidth(bench: Bench) -> float:
    """Return the bytes a second of a large copy, read and written ones."""
    source = torch.empty(bench.sized(1 << 31, 1 << 12), dtype=torch.int8, device=bench.where).random_()
    target = torch.empty_like(source)
    seconds = measure_seconds(bench.device, lambda: target.copy_(source), ROUNDS)
    return 2 * source.nbytes / statistics.median(seconds)


def measure_matrix_rate(bench: Bench) -> float:
    """Return the operations a second of a large product in bfloat16."""
    size = bench.sized(8192, 32)
    x, y = (torch.randn(size, size, device=bench.where).bfloat16() for _ in range(2))
    seconds = measure_seconds(bench.device, lambda: x @ y, ROUNDS)
    return 2 * size**3 / statistics.median(seconds)


def report_limits(bench: Bench) -> Iterator[Row]:
    """Tell what the device does, and what a launch costs the host."""
    yield Figure("copy bandwidth", measure_bandwidth(bench) / 1e9, "GB/s")
    source = torch.empty(bench.sized(1 << 30, 1 << 10), dtype=torch.float32, device=bench.where).normal_()
    seconds = statistics.median(measure_seconds(bench.device, source.sum, ROUNDS))
    yield Figure("read bandwidth of a sum", source.nbytes / seconds / 1e9, "GB/s")
    yield Figure("matrix rate, bfloat16", measure_matrix_rate(bench) / 1e12, "TFLOP/s")
    gate_up = torch.ones((1, 64), device=bench.where)
    silu_mul = OPERATIONS["silu_mul"].launch()
    for name, run, aim in (
        ("torch", lambda: gate_up + gate_up, None),
        ("Triton", lambda: silu_mul(gate_up), TRITON_MICROSECONDS),
    ):
        yield Figure(f"host time of a launch by {name}", _time_launches(bench, run) * 1e6, "us", aim)


def _time_launches(bench: Bench, run: Callable[[], object]) -> float:
    """Return the host's seconds for one launch, with fewer in line than the device's queue holds."""
    count = bench.sized(200, 2)
    run()
    rounds = []
    for _ in range(ROUNDS):
        bench.device.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            run()
        rounds.append((time.perf_counter() - began) / count)
    return statistics.median(rounds)
