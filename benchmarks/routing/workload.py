"""Chats that share prefixes: system prompts of different popularity, and conversations that grow by turns.

Nothing here is measured. Popularity follows Zipf's law. Lengths are lognormal, near those of Azure's trace of
conversations (`simulate/load.py`), with the answers of medium length.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from millrace_operator.autoscaler.simulate.load import share_by_rank

BLOCK_TOKENS = 16
BYTES_PER_TOKEN = 4
"""Of English text, about. Gateways see bytes."""


@dataclass(frozen=True)
class Chats:
    """A kind of traffic."""

    name: str
    num_systems: int = 16
    """System prompts; 0: no request has anything in common with another."""
    steepness: float = 1.0
    """Of their popularity: the share of rank k is proportional to k to the power of minus this."""
    system_tokens: tuple[int, int] = (1000, 5000)
    """The shortest and the longest system prompt."""
    mean_turns: float = 4.0
    """Of a conversation: their number has a geometric law."""
    think_seconds: float = 10.0
    """Mean time between an answer and the next turn; exponential."""
    user_tokens: float = 120.0
    """The median message of a user."""
    answer_tokens: float = 130.0
    """The median answer."""
    spread: float = 0.7
    """The standard deviation of the logarithms of the two lengths."""


SHARED = Chats("shared prefixes")
DISTINCT = Chats("nothing shared", num_systems=0, mean_turns=1.0, user_tokens=1000.0)
WORKLOADS = (SHARED, DISTINCT)


@dataclass(eq=False)
class Conversation:
    """One conversation, as its client sends it: each turn's prompt has the turns before."""

    number: int
    system: int
    """The number of its system prompt."""
    system_tokens: int
    turns: list[tuple[int, int]]
    """The tokens of each user's message, and of its answer."""
    thinks: list[float]
    """Seconds before each turn."""
    seed: int = 0
    """Of its writer: another one has other system prompts, which have other homes."""
    num_asked: int = 0
    tail_tokens: int = 0
    """Tokens behind the system prompt so far: messages and answers."""

    def ask(self) -> "Prompt | None":
        """Return the next turn's prompt; None after the last turn."""
        if self.num_asked == len(self.turns):
            return None
        message, answer = self.turns[self.num_asked]
        self.num_asked += 1
        self.tail_tokens += message
        prompt = Prompt(self, self.tail_tokens, answer)
        self.tail_tokens += answer
        return prompt


@dataclass(eq=False)
class Prompt:
    """One turn's request."""

    conversation: Conversation
    tail_tokens: int
    """Tokens behind the system prompt."""
    answer_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.conversation.system_tokens + self.tail_tokens

    def list_blocks(self, num_tokens: int) -> list[tuple[int, int]]:
        """Return the keys of the full blocks of the prompt and its answer, up to `num_tokens` in all.

        Blocks of the system prompt are those of all its conversations. A key is a text's number and a place.
        """
        shared = self.conversation.system_tokens // BLOCK_TOKENS
        full = num_tokens // BLOCK_TOKENS
        own = -1 - self.conversation.number
        blocks = [(self.conversation.system, place) for place in range(min(shared, full))]
        return blocks + [(own, place) for place in range(shared, full)]


class Writer:
    """Draws conversations. Equal seeds give equal ones."""

    def __init__(self, chats: Chats, seed: int) -> None:
        self._chats = chats
        self._rng = random.Random(f"{chats.name}-{seed}")  # noqa: S311  a simulation
        self._lengths = [self._rng.randint(*chats.system_tokens) for _ in range(chats.num_systems)]
        self._shares = share_by_rank(chats.num_systems, chats.steepness) if chats.num_systems else []
        self._number = 0
        self._seed = seed

    def write(self) -> Conversation:
        """Return the next conversation."""
        chats, rng = self._chats, self._rng
        self._number += 1
        system = rng.choices(range(chats.num_systems), self._shares)[0] if self._shares else 0
        num_turns = 1
        while rng.random() > 1 / chats.mean_turns:
            num_turns += 1
        turns = [(self._draw(chats.user_tokens), self._draw(chats.answer_tokens)) for _ in range(num_turns)]
        thinks = [0.0, *(rng.expovariate(1 / chats.think_seconds) for _ in range(num_turns - 1))]
        length = self._lengths[system] if self._lengths else 0
        return Conversation(self._number, system, length, turns, thinks, self._seed)

    def arrive(self, rate: float, seconds: float) -> Iterator[tuple[float, Conversation]]:
        """Yield conversations with their times: a Poisson process of `rate` a second."""
        at = 0.0
        while (at := at + self._rng.expovariate(rate)) < seconds:
            yield at, self.write()

    def _draw(self, median: float) -> int:
        return max(1, min(4096, round(self._rng.lognormvariate(math.log(median), self._chats.spread))))
