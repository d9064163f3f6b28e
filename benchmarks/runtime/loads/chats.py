"""Many tenants' chats at once: each turn has the whole history as its prompt, with the engine's own answers.

All chats of a tenant begin with its system prompt. The next turn of a chat is sent when its answer is whole.
"""

import asyncio
import dataclasses
import random
from dataclasses import dataclass
from typing import Self

from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.loads.caller import Caller, call
from benchmarks.runtime.workload import SHARED_PREFIX, Answering, Case, Completion, Figure, draw_tokens


@dataclass(frozen=True)
class Chats(Case):
    """The chats. `num_requests` counts all turns, and `num_prompt_tokens` are those of a system prompt."""

    num_tenants: int = 1
    num_turns: int = 1
    num_new_tokens: int = 1
    """Of a user's message."""

    @property
    def num_chats(self) -> int:
        """Of each tenant."""
        return self.num_requests // (self.num_tenants * self.num_turns)

    def draw_systems(self, seed: str) -> list[list[int]]:
        """Return each tenant's system prompt."""
        draw = random.Random(f"{self.name}-{seed}")  # noqa: S311  a workload, no secret
        return [draw_tokens(draw, self.num_prompt_tokens) for _ in range(self.num_tenants)]

    def shorten(self) -> Self:
        """Return two short chats."""
        short = super().shorten()
        return dataclasses.replace(short, num_tenants=2, num_turns=2, num_requests=4)

    def answer(self, engine: Answering, seed: str) -> list[Completion]:
        """Hold all chats. Raises EngineError."""
        assert isinstance(engine, ServerEngine)
        return call(engine, lambda caller: hold_chats(caller, self, seed))


CHATS = Chats(
    SHARED_PREFIX,
    Figure.OUTPUT,
    num_requests=64,
    num_prompt_tokens=512,
    num_output_tokens=32,
    num_tenants=8,
    num_turns=4,
    num_new_tokens=64,
)


MOST_LOST = 0.125
"""Of an answer's token ids. llama.cpp streamed 31 of 32: as we believe, it sends none of a token that is only
a part of a character. The next turn has the ids that came. So it is a little shorter, and the engine computes
what follows the gap again: at most an answer, beside a message that is twice as long."""


async def hold_chats(caller: Caller, case: Chats, seed: str) -> list[Completion]:
    """Return the completions of all turns. Raises EngineError."""
    chats = [
        _hold_chat(caller, case, system, random.Random(f"{seed}-{tenant}-{number}"))  # noqa: S311  no secret
        for tenant, system in enumerate(case.draw_systems(seed))
        for number in range(case.num_chats)
    ]
    return [turn for turns in await asyncio.gather(*chats) for turn in turns]


async def _hold_chat(caller: Caller, case: Chats, system: list[int], draw: random.Random) -> list[Completion]:
    history, turns = list(system), list[Completion]()
    for _ in range(case.num_turns):
        history += draw_tokens(draw, case.num_new_tokens)
        reply = await caller.ask(history, case.num_output_tokens)
        if case.num_output_tokens - len(reply.tokens) > MOST_LOST * case.num_output_tokens:
            raise EngineError(f"{len(reply.tokens)} token ids came of {case.num_output_tokens} tokens")
        history += reply.tokens
        turns.append(reply.to_completion())
    return turns
