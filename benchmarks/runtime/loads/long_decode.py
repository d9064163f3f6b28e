"""Decode of long sequences with a KV cache in 8 bits, over the same with one in bfloat16.

All rounds have the same prompts: after the first, which warms up, their keys are cached, and what is measured
is decode alone.
"""

import asyncio
import random
from collections.abc import Sequence

from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import ratios, spread
from benchmarks.runtime.loads.caller import Caller, Reply, call
from benchmarks.runtime.loads.setting import Found, Setting
from benchmarks.runtime.progress import report
from benchmarks.runtime.published import KV_INT8
from benchmarks.runtime.report import render_spread
from benchmarks.runtime.rounds import running
from benchmarks.runtime.workload import draw_tokens
from millrace_runtime import contract

NUM_SEQUENCES, NUM_PROMPT, NUM_ANSWER = 8, 8064, 128
NUM_QUICK = 512
"""Tokens of a prompt in a quick run."""
FLAGS = ("--max-model-length", "8192", "--kv-cache-memory", "2Gi")
"""In bfloat16 these sequences have 1.5 GB of keys and values."""


def measure_long_decode(setting: Setting) -> Found:
    """Return the figure. Raises EngineError, UnsupportedError."""
    setting.require(contract.FLAG_KV_CACHE)
    prompts = draw_prompts(NUM_QUICK if setting.is_quick else NUM_PROMPT)
    rates: dict[str, list[float]] = {"Int8": [], "Model": []}
    with (
        setting.start("kv-int8", flags=(*FLAGS, contract.FLAG_KV_CACHE, "Int8")) as rounded,
        setting.start("kv-model", flags=FLAGS) as plain,
    ):
        engines = {"Int8": rounded, "Model": plain}
        for number in range(-1, setting.num_rounds):  # the first warms up
            for name in list(engines)[:: -1 if number % 2 else 1]:
                with running(engines[name]), setting.bystanders.watch(engines[name]):
                    rates[name].append(decode(engines[name], prompts))
            report(f"round {number + 1}: decode {rates['Int8'][-1]:.1f} over {rates['Model'][-1]:.1f}")
    return {KV_INT8: render_spread(spread(ratios(rates["Int8"][1:], rates["Model"][1:])))}


def draw_prompts(num_tokens: int) -> list[list[int]]:
    """Return the prompts of all rounds."""
    draw = random.Random(KV_INT8)  # noqa: S311  a workload, no secret
    return [draw_tokens(draw, num_tokens) for _ in range(NUM_SEQUENCES)]


def decode(engine: ServerEngine, prompts: Sequence[list[int]]) -> float:
    """Return the rate of decode, with all prompts at once. Raises EngineError."""

    async def ask(caller: Caller) -> list[Reply]:
        return await asyncio.gather(*(caller.ask(prompt, NUM_ANSWER) for prompt in prompts))

    return compute_common_rate(call(engine, ask))


def compute_common_rate(replies: Sequence[Reply]) -> float:
    """Return the tokens per second of all answers while all are generated. Raises EngineError."""
    begin, end = max(one.times[0] for one in replies), min(one.times[-1] for one in replies)
    if begin >= end:
        raise EngineError("no two answers were generated at the same time")
    return sum(begin < at <= end for one in replies for at in one.times) / (end - begin)
