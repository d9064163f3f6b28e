"""Texts that repeat as much as is wanted: walks round cycles of the vocabulary. Pure.

A cycle has places, one after the other, and each place some tokens. The next token is one of the next place,
each as likely. So a guess by what followed before is right at a place with one token, and at a place with two
half of the time. No two texts share a prefix: each has a cycle of its own, or one with thousands of tokens.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.runtime.workload import Case


class Cycle(NamedTuple):
    """The tokens of each place."""

    places: tuple[range, ...]


@dataclass(frozen=True)
class Pattern:
    """Cycles of the same form, side by side in the vocabulary."""

    sizes: tuple[int, ...]
    """Tokens of each place."""
    first: int
    """Token id."""
    num_cycles: int

    @property
    def end(self) -> int:
        """The token id after the last one."""
        return self.first + self.num_cycles * sum(self.sizes)

    def list_cycles(self) -> Iterator[Cycle]:
        """Yield all cycles."""
        first = self.first
        for _ in range(self.num_cycles):
            places = []
            for size in self.sizes:
                places.append(range(first, first + size))
                first += size
            yield Cycle(tuple(places))


LIKELY = Pattern(sizes=(2, 2, 1, 1, 1, 2, 1, 2, 2, 1, 1, 1, 2, 1, 1), first=300, num_cycles=1400)
"""Of ten guesses that begin a draft or follow right ones eight are right: 6 of 15 places have two tokens."""
MISLEADING = Pattern(sizes=(1, 1, 16384), first=LIKELY.end, num_cycles=1)
"""After the same two tokens comes nearly always one that did not follow before: each draft is wrong."""
PATTERNS = (LIKELY, MISLEADING)


@dataclass(frozen=True)
class Walks(Case):
    """Requests whose prompts walk round cycles, and whose answers go on."""

    pattern: Pattern = LIKELY

    def draw_prompts(self, seed: str) -> list[list[int]]:
        """Return the prompts of a round, each on a cycle of its own."""
        draw = random.Random(f"{self.name}-{seed}")  # noqa: S311  a workload, no secret
        cycles = draw.sample(list(self.pattern.list_cycles()), self.num_requests)
        return [walk(cycle, self.num_prompt_tokens, draw) for cycle in cycles]


def walk(cycle: Cycle, num_tokens: int, draw: random.Random) -> list[int]:
    """Return the tokens of a walk that begins at any place."""
    begin, places = draw.randrange(len(cycle.places)), cycle.places
    return [draw.choice(places[(begin + step) % len(places)]) for step in range(num_tokens)]


def list_steps(patterns: Sequence[Pattern] = PATTERNS) -> Iterator[tuple[range, range]]:
    """Yield each place's tokens, with those that follow."""
    for pattern in patterns:
        for cycle in pattern.list_cycles():
            yield from zip(cycle.places, (*cycle.places[1:], cycle.places[0]), strict=True)
