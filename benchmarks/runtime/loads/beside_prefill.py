"""What a long prompt does to streams that decode beside it, and they to its first token.

The target of the time between tokens is twice a plain decode step, which a server without one has shown
just before.
"""

import asyncio
import random
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import spread
from benchmarks.runtime.loads.caller import Caller, Reply, call
from benchmarks.runtime.loads.setting import Found, Setting
from benchmarks.runtime.progress import report
from benchmarks.runtime.published import ITL_BESIDE, TTFT_BESIDE
from benchmarks.runtime.report import render_spread
from benchmarks.runtime.rounds import ask, running
from benchmarks.runtime.workload import WAKE, draw_tokens
from millrace_runtime import contract
from testing.traffic import percentile

NUM_DECODERS, NUM_DECODER_PROMPT = 8, 64
NUM_ALONE, NUM_ENDLESS = 192, 6000
"""Tokens of a decoder: alone, and beside a prompt, which none shall outlast."""
NUM_PREFILL = 7168
MODEL_LENGTH = ("--max-model-length", "8192")
TARGET_OVER_STEP = 2.0


class Times(NamedTuple):
    """What a load has shown, in seconds."""

    gaps: list[float]
    """Between the tokens of each stream, of all streams."""
    first_token: float
    """Of the long prompt."""


class Ratios(NamedTuple):
    """Beside each other over alone, of one round."""

    itl_p99: float
    ttft: float


def measure_beside_prefill(setting: Setting) -> Found:
    """Return both figures, with the target. Raises EngineError, UnsupportedError."""
    setting.require(contract.FLAG_TARGET_INTER_TOKEN)
    with setting.start(flags=MODEL_LENGTH) as engine, running(engine):
        step = statistics.median(decode_alone(engine, "target"))
    target = TARGET_OVER_STEP * step
    flags = (*MODEL_LENGTH, contract.FLAG_TARGET_INTER_TOKEN, f"{target:.4f}")
    found = list[Ratios]()
    with setting.start("target", flags=flags) as engine:
        for number in range(-1, setting.num_rounds):  # the first warms up
            with running(engine), setting.bystanders.watch(engine):
                found.append(compare(engine, str(number)))
            report(f"round {number + 1}: beside a long prompt {found[-1]}, target {1000 * target:.1f} ms")
    itl, ttft = (spread(values) for values in zip(*found[1:], strict=True))
    told = {"target_ms": round(1000 * target, 2)}
    return {ITL_BESIDE: render_spread(itl) | told, TTFT_BESIDE: render_spread(ttft) | told}


def compare(engine: ServerEngine, seed: str) -> Ratios:
    """Return a round's ratios. Raises EngineError."""
    gaps = decode_alone(engine, f"{seed} alone")
    alone = call(engine, lambda caller: caller.ask(_draw(f"{seed} prefill", 1, NUM_PREFILL)[0], 1))
    ask(engine, WAKE, f"{seed} beside")
    prompts = _draw(f"{seed} decoders", NUM_DECODERS, NUM_DECODER_PROMPT)
    (long,) = _draw(f"{seed} beside", 1, NUM_PREFILL)
    both = call(engine, lambda caller: prefill_beside(caller, prompts, long))
    return Ratios(
        percentile(both.gaps, 99) / percentile(gaps, 99), both.first_token / alone.first_token_seconds
    )


def decode_alone(engine: ServerEngine, seed: str) -> list[float]:
    """Return the seconds between the tokens of all decoders, without a prompt beside them."""
    ask(engine, WAKE, seed)
    prompts = _draw(seed, NUM_DECODERS, NUM_DECODER_PROMPT)

    async def decode(caller: Caller) -> list[float]:
        replies = await asyncio.gather(*(caller.ask(prompt, NUM_ALONE) for prompt in prompts))
        since = max(reply.times[0] for reply in replies)  # the others' prompts are computed until then
        return [gap for reply in replies for gap in reply.list_gaps(since)]

    return call(engine, decode)


async def prefill_beside(caller: Caller, prompts: Sequence[list[int]], long: list[int]) -> Times:
    """Start the decoders, then send the long prompt; cancel them at its first token. Raises EngineError."""
    replies = [Reply() for _ in prompts]
    pairs = zip(prompts, replies, strict=True)
    tasks = [asyncio.create_task(caller.ask(prompt, NUM_ENDLESS, reply)) for prompt, reply in pairs]
    begun: asyncio.Future[Any] = asyncio.gather(*(reply.begun.wait() for reply in replies))
    first: list[asyncio.Future[Any]] = [begun, *tasks]  # a decoder that fails never begins
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    asked = await caller.ask(long, 1)
    have_ended = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    begun.cancel()
    if have_ended:
        faults = [str(end) for end in ends if isinstance(end, EngineError)]
        raise EngineError(f"a decoder ended before the prompt beside it: {faults or 'all its tokens'}")
    gaps = [gap for reply in replies for gap in reply.list_gaps(asked.sent, asked.times[0])]
    return Times(gaps, asked.first_token_seconds)


def _draw(seed: str, count: int, num_tokens: int) -> list[list[int]]:
    draw = random.Random(f"beside-{seed}")  # noqa: S311  a workload, no secret
    return [draw_tokens(draw, num_tokens) for _ in range(count)]
