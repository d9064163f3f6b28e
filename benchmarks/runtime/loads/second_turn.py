"""How soon the second turn of a chat begins, over the first: it has the history and some new tokens."""

import random

from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.figures import spread
from benchmarks.runtime.loads.caller import Caller, call
from benchmarks.runtime.loads.setting import Found, Setting
from benchmarks.runtime.ours import with_tokens
from benchmarks.runtime.progress import report
from benchmarks.runtime.published import SECOND_TURN
from benchmarks.runtime.report import render_spread
from benchmarks.runtime.rounds import ask, running
from benchmarks.runtime.workload import WAKE, draw_tokens

NUM_PROMPT, NUM_ANSWER, NUM_NEW = 1984, 64, 50
"""Tokens: 2,048 of history."""


def measure_second_turn(setting: Setting) -> Found:
    """Return the figure. Raises EngineError."""
    ratios = []
    with setting.start(flags=("--max-model-length", "4096")) as engine:
        for number in range(-1, setting.num_rounds):  # the first warms up
            with running(engine), setting.bystanders.watch(engine):
                ask(engine, WAKE, str(number))
                ratios.append(compare_turns(engine, str(number)))
            report(f"round {number + 1}: second turn's first token over the first's {ratios[-1]:.3f}")
    return {SECOND_TURN: render_spread(spread(ratios[1:]))}


def compare_turns(engine: ServerEngine, seed: str) -> float:
    """Return the second turn's seconds to its first token over the first's. Raises EngineError."""
    draw = random.Random(f"{SECOND_TURN}-{seed}")  # noqa: S311  a workload, no secret
    prompt, message = draw_tokens(draw, NUM_PROMPT), draw_tokens(draw, NUM_NEW)
    return call(engine, lambda caller: hold_two_turns(caller, prompt, message), with_tokens())


async def hold_two_turns(caller: Caller, prompt: list[int], message: list[int]) -> float:
    """Do what `compare_turns` does."""
    first = await caller.ask(prompt, NUM_ANSWER)
    second = await caller.ask([*prompt, *first.tokens, *message], 1)
    return second.first_token_seconds / first.first_token_seconds
