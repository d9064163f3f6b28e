"""The part `families`: norms of heads, experts and windows beside the CPU, and the speed of large models."""

from functools import partial

from benchmarks.gpu.bench import Step
from benchmarks.gpu.model import FAMILIES, check_bfloat16, check_float32
from benchmarks.gpu.prefix_hits import check_hits
from benchmarks.gpu.rows import at_least
from benchmarks.gpu.weights import QWEN3_8B, QWEN3_30B_A3B, TINY_MIXTURE, TINY_QWEN3
from benchmarks.gpu.whole_steps import BATCHES, Shape, measure_decode, measure_prefill

CHECKED = ("qwen 3", "mixture", "windows", "gemma 3", "gpt-oss")
LARGE = {
    "Qwen3-8B": (Shape(QWEN3_8B, TINY_QWEN3), at_least(0.8)),
    "Qwen3-30B-A3B": (Shape(QWEN3_30B_A3B, TINY_MIXTURE), at_least(0.6)),
}
"""With the share of the bandwidth that decode is to reach."""
STEPS: dict[str, Step] = {
    **{f"{family} float32 parity": partial(check_float32, family) for family in CHECKED},
    **{f"{family} bfloat16 parity": partial(check_bfloat16, family) for family in CHECKED},
    "windows, prefix hits": partial(check_hits, FAMILIES["windows"]),
    **{
        f"{name}, decode, batch {count}": partial(measure_decode, count, shape=shape, aim=aim)
        for name, (shape, aim) in LARGE.items()
        for count in BATCHES
    },
    **{f"{name}, prefill": partial(measure_prefill, shape=shape) for name, (shape, _) in LARGE.items()},
}
