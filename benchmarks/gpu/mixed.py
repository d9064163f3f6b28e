"""A mixed load through our scheduler and executor: prompts and outputs of many lengths, all there at once."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.costs import Costs, Floor
from benchmarks.gpu.limits import measure_bandwidth, measure_matrix_rate
from benchmarks.gpu.rows import Check, Figure, Row, at_most
from benchmarks.gpu.serving import random_tokens, record, serve
from benchmarks.gpu.weights import LLAMA_8B, TINY
from millrace_fit.plan import choose_mixed_sizes, choose_sizes
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.encoding import count_tokens, pack_tokens
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.messages import Generate, NewSequence
from millrace_runtime.protocol.sampling import Sampling


class Load(NamedTuple):
    """How many requests, and how long they are."""

    num_requests: int
    longest_prompt: int
    longest_output: int
    num_slots: int
    max_batched_tokens: int


REAL = Load(160, 2048, 256, 64, 2048)
DRY = Load(3, 20, 4, 2, 16)


def make_requests(load: Load, vocabulary: int) -> list[Generate]:
    """Return requests with lengths from a sixteenth of the longest on. Every other one draws at random."""
    lengths = random_tokens(2 * load.num_requests, 1 << 20, seed=17)
    return [
        Generate(
            sequences=[NewSequence(number, Sampling(temperature=0.8 * (number % 2), seed=number))],
            prompt=pack_tokens(
                random_tokens(_length(lengths[2 * number], load.longest_prompt), vocabulary, seed=number)
            ),
            max_tokens=_length(lengths[2 * number + 1], load.longest_output),
            stop_token_ids=[],
        )
        for number in range(load.num_requests)
    ]


def _length(number: int, longest: int) -> int:
    least = max(1, longest // 16)
    return least + number % (longest - least + 1)


def measure_mixed_load(bench: Bench) -> Iterator[Row]:
    """Tell the tokens a second of the whole load, and its time over the least that its steps could take."""
    load, config = bench.sized(REAL, DRY), bench.sized(LLAMA_8B, TINY)
    floor = Floor(Costs.of(config), measure_bandwidth(bench), measure_matrix_rate(bench))
    length = load.longest_prompt + load.longest_output
    served = serve(bench, config, torch.bfloat16, length)
    blocks = load.num_slots * -(-length // 16)
    sizes, mixed = choose_sizes(load.num_slots), choose_mixed_sizes(load.max_batched_tokens)
    executor = served.open(load.num_slots, blocks, load.max_batched_tokens, sizes, mixed)
    began = time.perf_counter()
    record(executor)
    bench.device.synchronize()
    yield Figure("recording of a graph", (time.perf_counter() - began) / len(sizes + mixed), "s")
    requests = make_requests(load, config["vocab_size"])
    run_load(executor, requests[: load.num_slots // 4 + 1], Floor(Costs.of(config), 1.0, 1.0))  # warms up
    bench.device.synchronize()
    began = time.perf_counter()
    drawn, num_compiled = run_load(executor, requests, floor)
    seconds = time.perf_counter() - began
    prompts = sum(count_tokens(one.prompt) for one in requests)
    wanted = sum(one.max_tokens for one in requests)
    yield Check("each request got all its tokens", drawn == wanted, {"drawn": drawn, "wanted": wanted})
    yield Figure("mixed load: generated tokens", drawn / seconds, "tokens/s")
    yield Figure("mixed load: all tokens", (drawn + prompts) / seconds, "tokens/s")
    yield Figure("mixed load: least time over its time", floor.seconds / seconds, "")
    yield Figure("kernels compiled during the load", num_compiled, "", at_most(0))


class Totals(NamedTuple):
    """The record of a load's steps."""

    num_drawn: int
    num_compiled: int
    """Kernels: each one makes its step late."""


def run_load(executor: Executor, requests: list[Generate], floor: Floor) -> Totals:
    """Run the requests to their ends."""
    scheduler, num_drawn, num_compiled = Scheduler(executor.limits), 0, 0
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            executor.submit(plan)
            floor.add(plan)
        result = executor.collect()
        num_compiled += result.num_compiled
        num_drawn += sum(len(output.tokens) for output in scheduler.commit(result).outputs)
    return Totals(num_drawn, num_compiled)
