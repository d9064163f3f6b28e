"""The part `workers`: a model that two devices share, beside the same on one."""

import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

from benchmarks.gpu.bench import Bench, Step
from benchmarks.gpu.device import measure_seconds, open_device
from benchmarks.gpu.replica import DRY_OPTIONS
from benchmarks.gpu.rows import Figure, Row
from benchmarks.gpu.served.checkpoint import write_checkpoint
from benchmarks.gpu.served.client import Clients, open_clients
from benchmarks.gpu.served.measures import Session
from benchmarks.gpu.served.process import start_replica
from benchmarks.gpu.served.streams import Pace, measure_pace
from benchmarks.gpu.served.workload import checkpoint_of, choose_workload
from millrace_fit.shard import Shard
from millrace_runtime.execution.collective import Rank, open_group
from millrace_runtime.process import end_with_parent

NUM_WORKERS = 2
WIDTH = 4096
ROWS = (1, 8, 64, 512, 4096)
"""Rows of hidden states that workers add up, twice in each layer: 8 KiB to 32 MiB in bfloat16."""
ROUNDS = 20


def measure_sums(bench: Bench) -> Iterator[Row]:
    """Tell how long the workers' collective takes that adds up their parts, by its size."""
    if (count := bench.device.count()) < NUM_WORKERS:
        yield Figure("left out: needs two devices", count, "devices")
        return
    meeting = (bench.shared / "meeting").as_uri()
    time_rank = partial(time_sums, meeting, is_dry_run=bench.is_dry_run)
    with ProcessPoolExecutor(NUM_WORKERS, get_context("spawn"), end_with_parent, (os.getpid(),)) as pool:
        ranks = list(pool.map(time_rank, range(NUM_WORKERS)))
    for number, rows in enumerate(bench.sized(ROWS, ROWS[:2])):
        seconds = max(times[number] for times in ranks)
        facts = {"bytes": 2 * rows * WIDTH}
        yield Figure(f"sum of {rows} x {WIDTH}, {NUM_WORKERS} workers", seconds * 1e6, "us", facts=facts)


@torch.inference_mode()
def time_sums(meeting: str, rank: int, *, is_dry_run: bool) -> list[float]:
    """Return a worker's median seconds of a sum, for each number of rows. Every worker calls this at once."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # as a replica's workers have
    device = open_device(is_dry_run=is_dry_run, number=rank)
    group = open_group(Rank(Shard(rank, NUM_WORKERS), meeting=meeting), device.torch_device)
    found = []
    for rows in ROWS[:2] if is_dry_run else ROWS:
        part = torch.zeros((rows, WIDTH), dtype=torch.bfloat16, device=device.torch_device)
        spans = measure_seconds(device, partial(group.sum, part), 1 if is_dry_run else ROUNDS)
        found.append(statistics.median(spans))
    return found


def measure_shared(bench: Bench) -> Iterator[Row]:
    """Serve a model by one worker and by two, and compare their streams."""
    if bench.device.count() < NUM_WORKERS:
        return
    write_checkpoint(checkpoint_of(bench), choose_workload(bench).config, bench.where)
    bench.device.give_back_unused()
    paces: dict[int, dict[int, Pace]] = {}
    with open_clients(bench.sized(4, 2)) as clients:
        for num_workers in (1, NUM_WORKERS):
            told = "1 worker" if num_workers == 1 else f"{num_workers} workers"
            paces[num_workers] = {}
            for num_streams, pace in _measure_streams(bench, clients, num_workers):
                paces[num_workers][num_streams] = pace
                name = f"{told}, streams {num_streams}"
                yield Figure(f"{name}: tokens", pace.tokens_per_second, "tokens/s")
                yield Figure(f"{name}: between tokens, mean", pace.mean_gap * 1e3, "ms")
    for num_streams, alone in paces[1].items():
        ratio = paces[NUM_WORKERS][num_streams].tokens_per_second / alone.tokens_per_second
        yield Figure(f"streams {num_streams}: {NUM_WORKERS} workers over 1, tokens", ratio, "")


def _measure_streams(bench: Bench, clients: Clients, num_workers: int) -> Iterator[tuple[int, Pace]]:
    """Start a replica, and yield the pace of one stream and of many."""
    work, log = choose_workload(bench), bench.folder / f"workers-{num_workers}.log"
    options = ("--tensor-parallel", str(num_workers), *bench.sized((), DRY_OPTIONS))
    with start_replica(checkpoint_of(bench), bench.where.type, options, log) as replica:
        replica.await_ready()
        replica.await_rest()
        session = Session(bench, work, replica, clients, bandwidth=float("nan"))
        for count in (1, work.compared):
            session.ask(session.make_asks(count, work.prompt, work.output // 4))  # warms up
            yield count, measure_pace(session.ask(session.make_asks(count, work.prompt, work.output)))


STEPS: dict[str, Step] = {"sums": measure_sums, "one worker and two": measure_shared}
