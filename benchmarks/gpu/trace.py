"""The part `trace`: ten steps as Chrome's trace viewer shows them, and which kernels take their time."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.bench import Bench, Step
from benchmarks.gpu.recording import operations_of, record_steps
from benchmarks.gpu.rows import Check, Figure, Row
from benchmarks.gpu.timeline import Event, measure_gaps, rank_kernels, read_operations, slim
from benchmarks.gpu.whole_steps import BATCHES, open_decoding, serve_large

NUM_STEPS = 10
LARGEST_BYTES = 1 << 20
"""A trace is to be kept beside the results."""
NUM_RANKED = 15


def record_decodes(bench: Bench) -> Iterator[Row]:
    """Record ten decode steps of the larger batch, with two in flight."""
    num_sequences = bench.sized(BATCHES[-1], 2)
    driver = open_decoding(bench, serve_large(bench), num_sequences)
    events = record_steps(bench, driver, [1] * NUM_STEPS)
    on_device = operations_of(bench)
    operations = read_operations(events, on_device)
    steps = {one.step for one in operations}
    yield Check("each step is in the trace", steps == set(range(NUM_STEPS)), {"steps": sorted(steps)})
    path = bench.folder / "trace.json.gz"
    size = write_trace(path, slim(events, on_device))
    yield Check("the trace is small enough to keep", size <= LARGEST_BYTES, {"bytes": size})
    gaps = measure_gaps(operations)
    yield Figure("step in the trace", gaps.period / 1e3, "ms")
    yield Figure("operations on the device in a step", len(operations) / NUM_STEPS, "")
    for share in rank_kernels(operations, NUM_RANKED):
        facts = {"count_per_step": share.num_runs / NUM_STEPS}
        yield Figure(f"{share.name}", share.microseconds / NUM_STEPS, "us a step", facts=facts)


def write_trace(path: Path, events: Sequence[Event]) -> int:
    """Write a trace that Perfetto and Chrome open as it is. Return its size."""
    text = json.dumps({"traceEvents": events}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path.stat().st_size


STEPS: dict[str, Step] = {"ten decode steps": record_decodes}
