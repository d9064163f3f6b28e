"""Steps of a replica between two changes of its batch, and the sequences in it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from millrace_operator.autoscaler.simulate.load import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A request at a replica."""

    request: Request
    tokens_left: int
    """That it is still to generate."""
    uncomputed: int
    """Tokens of its prompt whose keys are not in the cache yet."""
    context: int = 0
    """Tokens in the cache when it joined the batch last, or so far while its prompt is computed."""
    joined_at_step: int = 0
    begun_at: float | None = None
    """When the first step began that computes something of it."""
    first_token_at: float | None = None


class Chunk(NamedTuple):
    """Tokens of a prompt that one step computes."""

    sequence: Sequence
    size: int


@dataclass(slots=True)
class Stretch:
    """Steps in which the batch does not change."""

    began: float
    num_steps: int
    first_seconds: float
    """Of the first step, without noise."""
    growth_seconds: float
    """By which each step is longer than the one before."""
    factor: float
    """Noise, the replica's own speed, and how new it is."""
    chunks: list[Chunk]
    """Prompt tokens computed; then the stretch is one step."""
    stall_seconds: float = 0.0
    total_seconds: float = 0.0

    def seconds(self, num_steps: int) -> float:
        """Return what so many of its steps take."""
        growth = self.growth_seconds * num_steps * (num_steps - 1) / 2
        return self.stall_seconds + self.factor * (num_steps * self.first_seconds + growth)

    def count_begun(self, elapsed: float) -> int:
        """Return how many steps have begun after some seconds."""
        left = max(elapsed - self.stall_seconds, 0.0) / self.factor
        linear = self.first_seconds - self.growth_seconds / 2
        if self.growth_seconds <= 0:
            return math.floor(left / self.first_seconds) + 1
        root = math.sqrt(linear * linear + 2 * self.growth_seconds * left)
        return math.floor((root - linear) / self.growth_seconds) + 1

    def count_done(self, elapsed: float) -> int:
        """Return how many steps have ended after some seconds."""
        return min(self.count_begun(elapsed) - 1, self.num_steps)
