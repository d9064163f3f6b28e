"""Requests of mixed lengths, each beginning when another one has ended, over waves that wait for their last.

The waves are the client's: it sends the next one when all answers of the one before are whole, as a server
with static batches would. Our server is asked in both ways. Most answers are short, and some are long.
"""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.figures import spread
from benchmarks.runtime.loads.caller import Caller, Reply, call
from benchmarks.runtime.loads.setting import Found, Setting
from benchmarks.runtime.progress import report
from benchmarks.runtime.published import CONTINUOUS
from benchmarks.runtime.report import render_spread
from benchmarks.runtime.rounds import ask, running
from benchmarks.runtime.workload import WAKE, draw_tokens

NUM_REQUESTS, NUM_QUICK, NUM_AT_ONCE = 128, 16, 8
PROMPT_TOKENS = range(16, 65)
SHORT, LONG, LONG_SHARE = range(8, 41), range(192, 321), 0.25
"""Tokens of answers."""


class Request(NamedTuple):
    """A prompt, and the tokens that are wanted."""

    prompt: list[int]
    num_tokens: int


def draw_requests(count: int, seed: str) -> list[Request]:
    """Return requests of mixed lengths."""
    draw = random.Random(f"waves-{seed}")  # noqa: S311  a workload, no secret
    lengths = [LONG if draw.random() < LONG_SHARE else SHORT for _ in range(count)]
    return [Request(draw_tokens(draw, draw.choice(PROMPT_TOKENS)), draw.choice(length)) for length in lengths]


def measure_waves(setting: Setting) -> Found:
    """Return the figure. Raises EngineError."""
    count, found = NUM_QUICK if setting.is_quick else NUM_REQUESTS, list[float]()
    with setting.start() as engine:
        for number in range(setting.num_rounds):
            with running(engine), setting.bystanders.watch(engine):
                found.append(compare(engine, count, number))
            report(f"round {number + 1}: continuous over static {found[-1]:.2f}")
    return {CONTINUOUS: render_spread(spread(found))}


def compare(engine: ServerEngine, count: int, number: int) -> float:
    """Return a round's ratio: both have the same lengths, and prompts of their own. Raises EngineError."""
    requests = draw_requests(count, str(number))
    others = [renew(request, f"{number}-{place}") for place, request in enumerate(requests)]
    ask(engine, WAKE, f"waves {number}")
    if number % 2:
        static = call(engine, lambda caller: measure_rate(ask_in_waves(caller, others)))
        return call(engine, lambda caller: measure_rate(ask_in_turn(caller, requests))) / static
    continuous = call(engine, lambda caller: measure_rate(ask_in_turn(caller, requests)))
    return continuous / call(engine, lambda caller: measure_rate(ask_in_waves(caller, others)))


def renew(request: Request, seed: str) -> Request:
    """Return a request as long as another, with a prompt of its own: the cache knows the other's."""
    draw = random.Random(f"renewed-{seed}")  # noqa: S311  a workload, no secret
    return request._replace(prompt=draw_tokens(draw, len(request.prompt)))


async def measure_rate(answers: Awaitable[Sequence[Reply]]) -> float:
    """Return the tokens a second from the first request to the last token."""
    replies = await answers
    began, ended = min(reply.sent for reply in replies), max(reply.times[-1] for reply in replies)
    return sum(reply.total for reply in replies) / (ended - began)


async def ask_in_turn(caller: Caller, requests: Sequence[Request]) -> list[Reply]:
    """Keep as many requests under way as a wave has."""
    left, replies = iter(requests), list[Reply]()

    async def ask_next() -> None:
        for request in left:  # shared: each takes the next one
            replies.append(await caller.ask(*request))

    await asyncio.gather(*(ask_next() for _ in range(NUM_AT_ONCE)))
    return replies


async def ask_in_waves(caller: Caller, requests: Sequence[Request]) -> list[Reply]:
    """Send wave after wave, each when all answers of the one before are whole."""
    replies = list[Reply]()
    for start in range(0, len(requests), NUM_AT_ONCE):
        wave = requests[start : start + NUM_AT_ONCE]
        replies += await asyncio.gather(*(caller.ask(*request) for request in wave))
    return replies
