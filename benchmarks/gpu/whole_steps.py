"""Speed of whole steps, by the executor's own protocol: decode, prefill, the host's part, and gaps."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.bench import Bench, Value
from benchmarks.gpu.costs import Costs, count_pairs
from benchmarks.gpu.limits import measure_bandwidth, measure_matrix_rate
from benchmarks.gpu.recording import operations_of, record_steps
from benchmarks.gpu.rows import Aim, Figure, Row, at_least, at_most
from benchmarks.gpu.serving import Driver, Served, record, serve
from benchmarks.gpu.timeline import measure_gaps, read_operations
from benchmarks.gpu.weights import LLAMA_8B, TINY
from millrace_kernels.linear.format import Format
from millrace_kernels.paged_attention.cache import KvFormat

ROUNDS = 7
BATCHES = (1, 64)
CONTEXT = 1024
"""Tokens that each sequence of a decode step has."""
OF_BANDWIDTH, OF_MATRIX_RATE = at_least(0.85), at_least(0.6)
HOST_MILLISECONDS, GAP = at_most(0.2), at_most(0.03)
PROMPT = 4096
ROUNDED_SPEED = at_least(1.35)


class Shape(NamedTuple):
    """A large model to time, and the tiny one that a dry run takes instead."""

    real: Mapping[str, Any]
    dry: Mapping[str, Any]


LLAMA = Shape(LLAMA_8B, TINY)


def serve_large(bench: Bench, shape: Shape = LLAMA, form: Format | None = None) -> Served:
    """Return the model whose steps are timed."""
    length = bench.sized(2 * CONTEXT, 120)
    return serve(bench, bench.sized(*shape), torch.bfloat16, length, form)


def open_decoding(
    bench: Bench,
    served: Served,
    num_sequences: int,
    *,
    is_recorded: bool = True,
    context: int | None = None,
    kv: KvFormat = KvFormat.MODEL,
) -> Driver:
    """Return a driver whose sequences decode, by a graph if it `is_recorded`, each with `context` tokens.

    All but their last token is taken to be in the KV cache.
    """
    context, blocks = context or bench.sized(CONTEXT, 20), num_sequences * -(-served.length // 16)
    executor = served.open(num_sequences, blocks, 256, recordable=[num_sequences] * is_recorded, kv=kv)
    record(executor)
    driver = Driver(executor)
    for slot in range(num_sequences):
        tokens = [(slot * 7 + place) % served.architecture.vocabulary_size for place in range(context)]
        driver.start(slot, tokens, is_computed=True)
    driver.run(bench.sized(10, 1))  # compiles, and fills torch's memory
    return driver


class Pace(NamedTuple):
    """A step of many that follow each other, on average."""

    seconds: float
    """From one result to the next."""
    own_seconds: float
    """As the results show."""


def measure_pace(bench: Bench, driver: Driver, num_steps: int) -> Pace:
    """Run steps with two in flight. The first one is left out: nothing ran while it was launched."""
    bench.device.synchronize()
    driver.submit()
    moments, own = [], []
    for number in range(num_steps):
        if number + 1 < num_steps:
            driver.submit()
        own.append(driver.collect().seconds)
        moments.append(time.perf_counter())
    return Pace((moments[-1] - moments[0]) / (num_steps - 1), statistics.mean(own[1:]))


def measure_decode(batch: int, bench: Bench, shape: Shape = LLAMA, aim: Aim = OF_BANDWIDTH) -> Iterator[Row]:
    """Compare a decode step's time with what reading weights and KV cache takes at the copy's bandwidth."""
    num_sequences = bench.sized(batch, min(batch, 2))
    bandwidth, served = measure_bandwidth(bench), serve_large(bench, shape)
    costs = Costs.of(bench.sized(*shape))
    num_rounds, num_steps = bench.sized((ROUNDS, 20), (1, 2))
    grown = num_rounds * num_steps // 2  # what a sequence has at the end and had not on average
    for manner, is_recorded in (("graphs", True), ("eager", False)):
        driver = open_decoding(bench, served, num_sequences, is_recorded=is_recorded)
        paces = [measure_pace(bench, driver, num_steps) for _ in range(num_rounds)]
        wall = statistics.median(pace.seconds for pace in paces)
        contexts = [one.num_computed - grown for one in driver.running.values()]
        least = costs.step_bytes(contexts) / bandwidth
        facts = {"bandwidth_bytes_per_second": bandwidth, "rounds_seconds": [one.seconds for one in paces]}
        name = f"decode, batch {batch}, {manner}"
        wanted = aim if is_recorded else None
        yield Figure(f"{name}: share of bandwidth", least / wall, "", wanted, facts)
        yield Figure(f"{name}: time", wall * 1e3, "ms")
        yield Figure(f"{name}: own time", statistics.median(one.own_seconds for one in paces) * 1e3, "ms")
        yield Figure(f"{name}: tokens", num_sequences / wall, "tokens/s")


def measure_rounded_decode(bench: Bench) -> Iterator[Row]:
    """Compare a decode step of long sequences over a KV cache in FP8 with the same over one in bfloat16."""
    count, context = bench.sized((8, 32768), (2, 20))
    num_rounds, num_steps = bench.sized((ROUNDS, 20), (1, 2))
    served = serve(bench, bench.sized(*LLAMA), torch.bfloat16, context + 16 + 10 + num_rounds * num_steps)
    seconds = {}
    for kv in (KvFormat.FP8, KvFormat.MODEL):
        driver = open_decoding(bench, served, count, context=context, kv=kv)
        paces = [measure_pace(bench, driver, num_steps).seconds for _ in range(num_rounds)]
        seconds[kv] = statistics.median(paces)
        yield Figure(f"decode, {count}x{context}, KV {kv.value}: time", seconds[kv] * 1e3, "ms")
        del driver  # its cache has up to half of the memory
    share = seconds[KvFormat.MODEL] / seconds[KvFormat.FP8]
    yield Figure(f"decode, {count}x{context}, KV Fp8: speed over bfloat16's", share, "", ROUNDED_SPEED)


def measure_host_time(bench: Bench) -> Iterator[Row]:
    """Tell the executor's CPU time for submitting a step and for collecting one that has run.

    Waiting is left out, and so is what the driver does: it plans, and keeps what was drawn.
    """
    served = serve_large(bench)
    for num_sequences in bench.sized(BATCHES, (2,)):
        driver = open_decoding(bench, served, num_sequences)
        submits, collects = [], []
        for _ in range(bench.sized(60, 2)):
            plan = driver.plan(1)
            bench.device.synchronize()
            _, submitting = _time_host(partial(driver.executor.submit, plan))
            bench.device.synchronize()
            result, collecting = _time_host(driver.executor.collect)
            driver.keep(result)
            submits.append(submitting)
            collects.append(collecting)
        cpu, walls = (
            statistics.median(one[kind] + other[kind] for one, other in zip(submits, collects, strict=True))
            for kind in (0, 1)
        )
        facts = {"submit_ms": statistics.median(cpu for cpu, _ in submits) * 1e3, "wall_ms": walls * 1e3}
        name = f"CPU time of a step, batch {num_sequences}"
        yield Figure(name, cpu * 1e3, "ms", HOST_MILLISECONDS, facts)


def _time_host(run: Callable[[], Value]) -> tuple[Value, tuple[float, float]]:
    """Return what a call returns, and its seconds: of this thread's CPU, and of the wall's clock."""
    cpu, wall = time.thread_time(), time.perf_counter()
    value = run()
    return value, (time.thread_time() - cpu, time.perf_counter() - wall)


def measure_step_gaps(bench: Bench) -> Iterator[Row]:
    """Tell how long the device has nothing to do between two steps, with two of them in flight."""
    served = serve_large(bench)
    for num_sequences in bench.sized(BATCHES, (2,)):
        driver = open_decoding(bench, served, num_sequences)
        pace = measure_pace(bench, driver, bench.sized(40, 2))
        events = record_steps(bench, driver, [1] * bench.sized(20, 2))
        gaps = measure_gaps(read_operations(events, operations_of(bench)))
        facts = {"step_ms_recorded": gaps.period / 1e3, "step_ms_unrecorded": pace.seconds * 1e3}
        name = f"batch {num_sequences}"
        yield Figure(f"gap between steps, {name}", gaps.between, "of time", GAP, facts)
        yield Figure(f"gaps within steps, {name}", gaps.within, "of time", facts=facts)
        yield Figure(f"outside of steps' own time, {name}", 1 - pace.own_seconds / pace.seconds, "of time")


def measure_prefill(bench: Bench, shape: Shape = LLAMA) -> Iterator[Row]:
    """Compare a step that computes a whole prompt with the rate of a large product."""
    rate = measure_matrix_rate(bench)
    config, length = bench.sized(*shape), bench.sized(PROMPT, 20)
    times = time_prefill(bench, config, length)
    seconds = statistics.median(times)
    flops = Costs.of(config).flops(length, count_pairs(length, length), 1)
    facts = {"matrix_flops_per_second": rate, "rounds_seconds": times}
    name = f"prefill of {length} tokens"
    yield Figure(f"{name}: share of matrix rate", flops / seconds / rate, "", OF_MATRIX_RATE, facts)
    yield Figure(f"{name}: time", seconds * 1e3, "ms")
    yield Figure(f"{name}: tokens", length / seconds, "tokens/s")


def time_prefill(
    bench: Bench, config: Mapping[str, Any], length: int, form: Format | None = None
) -> list[float]:
    """Return the seconds of steps that compute a whole prompt each, after one more that compiles."""
    served = serve(bench, config, torch.bfloat16, length + 16, form)
    rounds = bench.sized(5, 1)
    executor = served.open(rounds + 1, (rounds + 1) * -(-length // 16), max_batched_tokens=length)
    driver, times = Driver(executor), []
    for slot in range(rounds + 1):
        driver.start(slot, [(slot * 11 + place) % config["vocab_size"] for place in range(length)])
        bench.device.synchronize()
        began = time.perf_counter()
        driver.submit(length)
        driver.collect()
        times.append(time.perf_counter() - began)
        driver.running.clear()
    return times[1:]
