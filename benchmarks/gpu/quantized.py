"""The part `quantized`: models with quantised weights beside the CPU, and their speed over bfloat16."""

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench, Step
from benchmarks.gpu.costs import Costs
from benchmarks.gpu.device import measure_seconds
from benchmarks.gpu.limits import measure_bandwidth
from benchmarks.gpu.model import check_bfloat16, check_float32, check_graphs
from benchmarks.gpu.quantized_linear import pack
from benchmarks.gpu.rounding import FORMS, bytes_of_weight
from benchmarks.gpu.rows import Aim, Figure, Row, at_least
from benchmarks.gpu.whole_steps import LLAMA, PROMPT, measure_pace, open_decoding, serve_large, time_prefill
from millrace_kernels.linear.gpu.matrix import GpuMatrix
from millrace_kernels.tensor_matrices import multiply_packed

ROUNDS = 7
STEP_AIMS: dict[str, dict[int, tuple[Aim | None, Aim | None]]] = {
    "FP8": {1: (at_least(0.8), at_least(1.5)), 16: (at_least(0.8), None), 64: (at_least(0.7), None)},
    "FP8 blocks": {1: (None, None), 64: (None, None)},
    "INT8": {1: (None, None), 64: (None, None)},
    "W4A16": {1: (None, at_least(2.0)), 16: (None, None), 64: (None, None)},
}
"""By the number of sequences: the share of the bandwidth, and the speed over bfloat16."""
PREFILL_AIMS = {"FP8": at_least(1.3), "FP8 blocks": None, "INT8": None, "W4A16": at_least(0.85)}
FEW, MANY = (1, 4, 16), (64, 256, 1024, 4096)
"""Rows of products: those that wait for the weights, and those that wait for the multiplication."""
MATRICES = ((4096, 4096), (28672, 4096), (4096, 14336))
"""Outputs and inputs of a layer of eight billion weights."""


def measure_decode(name: str, bench: Bench) -> Iterator[Row]:
    """Compare decode steps with what reading weights and KV cache takes, and with steps in bfloat16."""
    form, bandwidth = FORMS[name], measure_bandwidth(bench)
    costs = Costs.of(bench.sized(*LLAMA))
    dense, quantized = serve_large(bench), serve_large(bench, form=form)
    num_rounds, num_steps = bench.sized((ROUNDS, 20), (1, 2))
    for batch, (of_bytes, of_speed) in STEP_AIMS[name].items():
        count, seconds = bench.sized(batch, min(batch, 2)), {}
        for kind, served in (("bfloat16", dense), (name, quantized)):
            driver = open_decoding(bench, served, count)
            paces = [measure_pace(bench, driver, num_steps) for _ in range(num_rounds)]
            seconds[kind] = statistics.median(pace.seconds for pace in paces)
            contexts = [one.num_computed - num_rounds * num_steps // 2 for one in driver.running.values()]
        least = costs.step_bytes(contexts, bytes_of_weight(form)) / bandwidth
        label = f"decode, batch {batch}"
        yield Figure(f"{label}: share of bandwidth", least / seconds[name], "", of_bytes)
        yield Figure(f"{label}: speed over bfloat16", seconds["bfloat16"] / seconds[name], "", of_speed)
        yield Figure(f"{label}: time", seconds[name] * 1e3, "ms")


def measure_prefill(name: str, bench: Bench) -> Iterator[Row]:
    """Compare a prompt's step with one in bfloat16."""
    config, length = bench.sized(*LLAMA), bench.sized(PROMPT, 70)
    dense, mine = (statistics.median(time_prefill(bench, config, length, one)) for one in (None, FORMS[name]))
    yield Figure(f"prefill of {length} tokens: speed over bfloat16", dense / mine, "", PREFILL_AIMS[name])
    yield Figure(f"prefill of {length} tokens: time", mine * 1e3, "ms")


def measure_products(name: str, bench: Bench) -> Iterator[Row]:
    """Compare products of few rows with their bytes, and those of many with the same ones in bfloat16."""
    bandwidth, form = measure_bandwidth(bench), FORMS[name]
    is_int4 = name == "W4A16"
    for outputs, inputs in bench.sized(MATRICES, ((40, 96),)):
        weight = torch.randn(outputs, inputs, device=bench.where) * inputs**-0.5
        matrix, dense = pack(weight, name), weight.bfloat16()
        for rows in bench.sized(FEW, (1,)):
            seconds = _time_product(bench, rows, matrix)
            moved = bytes_of_weight(form) * outputs * inputs
            label, aim = f"{rows} x {inputs} to {outputs}", at_least(0.65) if is_int4 else None
            yield Figure(f"{label}: share of bandwidth", moved / seconds / bandwidth, "", aim)
        for rows in bench.sized(MANY, (70,)):
            seconds, exact = (_time_product(bench, rows, one) for one in (matrix, dense))
            label, aim = f"{rows} x {inputs} to {outputs}", at_least(0.85) if is_int4 else None
            yield Figure(f"{label}: speed over bfloat16", exact / seconds, "", aim)


def _time_product(bench: Bench, rows: int, weight: GpuMatrix | Tensor) -> float:
    inputs = weight.inputs if isinstance(weight, GpuMatrix) else weight.shape[1]
    x = torch.randn(rows, inputs, device=bench.where).bfloat16()

    def multiply() -> Tensor:
        return multiply_packed(x, weight) if isinstance(weight, GpuMatrix) else x @ weight.t()

    return statistics.median(measure_seconds(bench.device, multiply, bench.sized(ROUNDS, 1)))


STEPS: dict[str, Step] = {
    **{f"{name}, float32 parity": partial(check_float32, "llama", form=form) for name, form in FORMS.items()},
    **{
        f"{name}, bfloat16 parity": partial(check_bfloat16, "llama", form=form)
        for name, form in FORMS.items()
    },
    "mixture, FP8 blocks, parity": partial(check_float32, "mixture", form=FORMS["FP8 blocks"]),
    "mixture, W4A16, parity": partial(check_float32, "mixture", form=FORMS["W4A16"]),
    **{f"{name}, graphs": partial(check_graphs, form=form) for name, form in FORMS.items()},
    **{f"{name}, products": partial(measure_products, name) for name in FORMS},
    **{f"{name}, decode": partial(measure_decode, name) for name in FORMS},
    **{f"{name}, prefill": partial(measure_prefill, name) for name in FORMS},
}
