"""Requests over time: drawn from a rate, or sent by a few clients, each with its own bursts and lengths.

A day of clients has the shape that ServeGen describes of production loads: few clients carry most of the
load, their gaps vary much more than Poisson's, and the hourly rate of a day has a peak 2.4 to 2.6 times its
trough.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

DAY_SECONDS = 86_400.0
KNOT_SECONDS = 900.0
"""Between two points of a rate that is straight in between."""
WOBBLE_KNOTS = 8
"""Knots between two random factors: a client's deviation lasts about two hours."""


class Request(NamedTuple):
    """One request: its time in seconds, and the tokens of its prompt and its answer."""

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


@dataclass(frozen=True)
class Client:
    """A client whose requests are alike."""

    share: float
    """Its part of all requests, on average."""
    variation: float
    """Standard deviation of the gaps between its requests over their mean; Poisson's is 1."""
    late_seconds: float
    """Its day is later than the others' by so much."""
    lengths: Lengths


@dataclass(frozen=True)
class Clients:
    """All clients of a service, over one day or more."""

    clients: tuple[Client, ...]
    requests_per_second: float
    """On average over a day."""
    seconds: float
    swing: float = 0.42
    """The amplitude of a client's rate over a day, relative to its mean."""
    wobble: float = 0.08
    """Standard deviation of a client's rate around its day, relative."""
    peak_at: float = DAY_SECONDS / 2

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield all clients' requests in order."""
        seeds = random.Random(seed)  # noqa: S311  a simulation
        return heapq.merge(*[self._draw(client, seeds.random()) for client in self.clients])

    def rates(self, client: Client, rng: random.Random) -> list[float]:
        """Return a client's requests per second every `KNOT_SECONDS`."""
        count = math.ceil(self.seconds / KNOT_SECONDS) + 1
        factors = [math.exp(rng.gauss(0, self.wobble)) for _ in range(count // WOBBLE_KNOTS + 2)]
        mean = client.share * self.requests_per_second
        return [
            mean * self._daily(knot * KNOT_SECONDS - client.late_seconds) * _interpolate(factors, knot)
            for knot in range(count)
        ]

    def _daily(self, at: float) -> float:
        return 1 + self.swing * math.cos(2 * math.pi * (at - self.peak_at) / DAY_SECONDS)

    def _draw(self, client: Client, seed: float) -> Iterator[Request]:
        """Yield requests with Gamma-distributed gaps. Within a gap the rate hardly changes."""
        rng = random.Random(seed)  # noqa: S311  a simulation
        rates, at = self.rates(client, rng), 0.0
        shape = 1 / client.variation**2
        while True:
            knot, rest = divmod(at, KNOT_SECONDS)
            low, high = rates[int(knot)], rates[int(knot) + 1]
            rate = low + (high - low) * rest / KNOT_SECONDS
            at += rng.gammavariate(shape, 1 / shape) / rate
            if at >= self.seconds:
                return
            yield Request(at, *client.lengths.draw(rng))


def _interpolate(factors: list[float], knot: int) -> float:
    index, rest = divmod(knot, WOBBLE_KNOTS)
    return factors[index] + (factors[index + 1] - factors[index]) * rest / WOBBLE_KNOTS


def share_by_rank(count: int, steepness: float) -> list[float]:
    """Return each client's share: that of rank k is proportional to k to the power of -steepness."""
    weights = [(rank + 1) ** -steepness for rank in range(count)]
    return [weight / sum(weights) for weight in weights]
