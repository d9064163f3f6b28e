"""Our scheduler and executor in one process, without HTTP.

Arguments: the model's folder, the precision of its weights, the most tokens in one step, and how many workers
hold the model together.
"""

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.runtime.drivers.conversation import Complete, Progress, converse
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.parallel.executor import start_workers
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.messages import Generate, NewSequence
from millrace_runtime.protocol.sampling import Sampling

WEIGHTS: dict[str, dict[str, Any]] = {"bf16": {}, "int8": {"weights": "Int8"}, "int4": {"weights": "Int4"}}


def load() -> tuple[str, Complete]:
    """Build the engine from the command's arguments."""
    model, precision, max_batched_tokens, num_workers = sys.argv[1:]
    settings = ExecutionSettings(
        model_path=Path(model),
        device="cpu",
        dtype="bfloat16",
        max_model_length=2048,
        max_sequences=64,
        max_batched_tokens=int(max_batched_tokens),
        kv_cache_bytes=1 << 30,
        **WEIGHTS[precision],
    )
    executor = start_executor(settings, int(num_workers))
    scheduler = Scheduler(executor.limits)
    return "", lambda prompts, num_tokens: complete(scheduler, executor, prompts, num_tokens)


def start_executor(settings: ExecutionSettings, num_workers: int) -> Executor:
    """Return one in this process, or over workers of their own."""
    if num_workers > 1:
        return start_workers(settings, num_workers, lambda _: None)
    return build_executor(settings)


def complete(
    scheduler: Scheduler, executor: Executor, prompts: list[list[int]], num_tokens: int
) -> list[list[Any]]:
    """Run the sequences to their ends."""
    progress = [Progress(time.perf_counter()) for _ in prompts]
    for number, prompt in enumerate(prompts):
        scheduler.add(
            Generate(
                sequences=[NewSequence(number, Sampling(temperature=0.0))],
                prompt=pack_tokens(prompt),
                max_tokens=num_tokens,
                stop_token_ids=[],
            )
        )
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            executor.submit(plan)
        for output in scheduler.commit(executor.collect()).outputs:
            progress[output.sequence_id].note(len(output.tokens), time.perf_counter())
    return [each.to_list() for each in progress]


if __name__ == "__main__":
    converse(load)
