"""How near our decode comes to what memory allows, on a model that no cache holds.

One sequence decodes; a step must read every weight and the sequence's KV once. That many bytes times the
tokens a second is the bandwidth used, and it is put over the bandwidth measured just before and after.
"""

import statistics
from pathlib import Path
from typing import NamedTuple

from benchmarks.runtime.bandwidth import measure_read_bandwidth
from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.figures import Spread, spread
from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.shapes import BILLION
from benchmarks.runtime.ours import our_library
from benchmarks.runtime.progress import report
from benchmarks.runtime.rounds import ask, running
from benchmarks.runtime.workload import Case, Figure

CASE = Case("decode of a billion weights", Figure.DECODE, 1, 128, 32)


class MemoryLimit(NamedTuple):
    """What was found."""

    share: Spread
    """Of the bandwidth, used."""
    tokens_per_second: Spread
    bytes_per_token: int


def measure_memory_limit(
    folder: Path, num_rounds: int, num_threads: int, bystanders: Bystanders, case: Case = CASE
) -> MemoryLimit:
    """Write the model, and decode on it in process. Raises EngineError."""
    report("writing two gigabytes of random weights")
    model = write_model(folder / "billion", BILLION)
    bytes_per_token = BILLION.count_bytes_per_token(case.num_prompt_tokens + case.num_output_tokens / 2)
    shares, rates = [], []
    with our_library(model, "bf16", num_threads).start(folder) as engine:
        ask(engine, case.shorten(), "warm")
        engine.pause()
        for number in range(num_rounds):
            before = measure_read_bandwidth(num_threads)
            with running(engine), bystanders.watch(engine):
                rate = ask(engine, case, str(number))
            bandwidth = statistics.mean([before, measure_read_bandwidth(num_threads)])
            rates.append(rate)
            shares.append(bytes_per_token * rate / bandwidth)
            report(f"round {number + 1}: {rate:.2f} tokens/s, {shares[-1]:.2f} of {bandwidth / 1e9:.1f} GB/s")
    return MemoryLimit(spread(shares), spread(rates), round(bytes_per_token))
