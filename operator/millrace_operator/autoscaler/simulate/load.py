"""Requests over time, drawn from a rate."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Request(NamedTuple):
    """One request: when it comes, in seconds, and how many tokens it has and gets."""

    at: float
    prompt_tokens: int
    generation_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Lognormal numbers of tokens. Means and standard deviations are those of the logarithm."""

    prompt_mean: float
    prompt_deviation: float
    generation_mean: float
    generation_deviation: float
    longest: int = 32_768

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """Return the tokens of a prompt and of its answer, at least one each."""
        prompt = rng.lognormvariate(self.prompt_mean, self.prompt_deviation)
        generation = rng.lognormvariate(self.generation_mean, self.generation_deviation)
        return self._bound(prompt), self._bound(generation)

    def _bound(self, tokens: float) -> int:
        return max(1, min(round(tokens), self.longest))


CONVERSATION = Lengths(6.63, 0.99, 5.02, 0.86)
"""A lognormal fit to Azure's conversation trace of 2023, whose medians are 1020 and 129 tokens."""


def fixed_lengths(prompt_tokens: int, generation_tokens: int, deviation: float = 0.1) -> Lengths:
    """Return lengths near these medians."""
    return Lengths(math.log(prompt_tokens), deviation, math.log(generation_tokens), deviation)


def draw_requests(
    rate_at: Callable[[float], float], highest_rate: float, seconds: float, lengths: Lengths, seed: int
) -> Iterator[Request]:
    """Yield Poisson arrivals of a rate that changes and is at most `highest_rate`, by thinning."""
    rng, at = random.Random(seed), 0.0  # noqa: S311  a simulation
    while (at := at + rng.expovariate(highest_rate)) < seconds:
        if rng.random() * highest_rate < rate_at(at):
            yield Request(at, *lengths.draw(rng))


def step_rates(rates: Iterable[float], seconds: Iterable[float]) -> Callable[[float], float]:
    """Return a rate that is constant for so many seconds each, and the last one from then on."""
    steps = list(zip(rates, seconds, strict=True))

    def rate_at(at: float) -> float:
        for rate, length in steps:
            if at < length:
                return rate
            at -= length
        return steps[-1][0]

    return rate_at
