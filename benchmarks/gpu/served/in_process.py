"""Our scheduler and executor in one process, at the load that the replica has."""

import statistics
import time
from collections.abc import Iterator

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Figure, Row, at_least
from benchmarks.gpu.served.workload import checkpoint_of, choose_workload, read_rate
from benchmarks.gpu.serving import record
from benchmarks.runtime.drivers.millrace import complete
from benchmarks.runtime.workload import read_completion
from millrace_fit.settings import Settings
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.settings import ExecutionSettings

OF_ENGINE = at_least(0.95)


def measure_engine(bench: Bench) -> Iterator[Row]:
    """Tell the tokens a second of as many greedy streams as the replica is compared at."""
    work = choose_workload(bench)
    defaults = Settings(device=bench.sized("cuda", "cpu"))
    settings = ExecutionSettings(
        checkpoint_of(bench),
        device=defaults.device,
        max_sequences=defaults.num_sequences,
        max_batched_tokens=defaults.num_batched_tokens,
        kv_cache_bytes=bench.sized(None, 16 << 20),
    )
    began = time.perf_counter()
    executor = build_executor(settings)
    yield Figure("loading", time.perf_counter() - began, "s")
    record(executor)
    scheduler, rates = Scheduler(executor.limits), []
    for number in range(work.rounds + 1):
        prompts = work.draw_prompts(work.compared, work.prompt, seed=5 + number)
        found = [read_completion(one) for one in complete(scheduler, executor, prompts, work.output)]
        seconds = max(one.last_token for one in found) - min(one.sent for one in found)
        rates.append(sum(one.num_tokens for one in found) / seconds)
    rate = statistics.median(rates[1:])  # the first round warms up
    facts = {"rounds_tokens_per_second": rates[1:]}
    yield Figure(f"{work.compared} streams in one process: tokens", rate, "tokens/s", facts=facts)
    if replica := read_rate(bench, "replica"):
        yield Figure(f"{work.compared} streams: the replica over the engine", replica / rate, "", OF_ENGINE)
