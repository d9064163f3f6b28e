"""The part `replica`: `millrace serve` as users have it, asked over HTTP, beside transformers."""

import contextlib
import time
from collections.abc import Iterator

from benchmarks.gpu.bench import Bench, Step
from benchmarks.gpu.limits import measure_bandwidth
from benchmarks.gpu.rows import Check, Figure, Row
from benchmarks.gpu.served.checkpoint import write_checkpoint
from benchmarks.gpu.served.client import open_clients
from benchmarks.gpu.served.in_process import measure_engine
from benchmarks.gpu.served.measures import Session, measure_all
from benchmarks.gpu.served.process import start_replica
from benchmarks.gpu.served.transformers_peer import measure_transformers
from benchmarks.gpu.served.workload import checkpoint_of, choose_workload

DRY_OPTIONS = ("--kv-cache-memory", "16Mi", "--max-model-length", "4096")
"""Real runs have the defaults, as users do."""


def write_model(bench: Bench) -> Iterator[Row]:
    """Write the model that all other steps read."""
    began = time.perf_counter()
    num_bytes = write_checkpoint(checkpoint_of(bench), choose_workload(bench).config, bench.where)
    yield Check("the model is written", holds=True, facts={"bytes": num_bytes})
    yield Figure("writing the model", time.perf_counter() - began, "s")


def measure_replica(bench: Bench) -> Iterator[Row]:
    """Start a replica, ask it from other processes, and end it."""
    bandwidth = measure_bandwidth(bench)
    bench.device.give_back_unused()
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(open_clients(bench.sized(4, 2)))
        options, log = bench.sized((), DRY_OPTIONS), bench.folder / "replica.log"
        replica = stack.enter_context(start_replica(checkpoint_of(bench), bench.where.type, options, log))
        yield from measure_all(Session(bench, choose_workload(bench), replica, clients, bandwidth))


STEPS: dict[str, Step] = {
    "model": write_model,
    "replica": measure_replica,  # the first that compiles kernels, as a new pod's is
    "engine in one process": measure_engine,
    "transformers": measure_transformers,
}
