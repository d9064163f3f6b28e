"""A day of a service whose load comes from a few clients, each with a burstiness and lengths of its own.

The shape is that of ServeGen's description of production loads: few clients carry most of the load, their
gaps vary much more than Poisson's, and the hourly rate of a day has a peak 2.4 to 2.6 times its trough.
"""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from millrace_operator.autoscaler.simulate.load import Lengths, Request

DAY_SECONDS = 86_400.0
KNOT_SECONDS = 900.0
"""Between two points of a rate that is straight in between."""
WOBBLE_KNOTS = 8
"""So many of them are between two random factors: a client's whim lasts about two hours."""


@dataclass(frozen=True)
class Client:
    """Somebody whose requests are alike."""

    share: float
    """Of all requests, on average."""
    variation: float
    """Standard deviation of the gaps between its requests over their mean; Poisson's is 1."""
    late_seconds: float
    """By which its day is later than the others'."""
    lengths: Lengths


@dataclass(frozen=True)
class Clients:
    """All clients of a service, over one day or more."""

    clients: tuple[Client, ...]
    requests_per_second: float
    """On average over a day."""
    seconds: float
    swing: float = 0.42
    """By which a client's rate rises and falls over a day, relative to its mean."""
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
            mean * self._daily(knot * KNOT_SECONDS - client.late_seconds) * _between(factors, knot)
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


def _between(factors: list[float], knot: int) -> float:
    index, rest = divmod(knot, WOBBLE_KNOTS)
    return factors[index] + (factors[index + 1] - factors[index]) * rest / WOBBLE_KNOTS


def share_by_rank(count: int, steepness: float) -> list[float]:
    """Return each client's share: that of rank k goes with k to the power of -steepness."""
    weights = [(rank + 1) ** -steepness for rank in range(count)]
    return [weight / sum(weights) for weight in weights]
