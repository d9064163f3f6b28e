"""How late tokens are when so many replicas share a load, and how many replicas keep every objective.

A replica's share of the load is λ requests a second, with I prompt and O generated tokens each. A step of n
sequences also prefills the λ·I·T tokens that arrive during it, and Little's law gives n = λ·O·T. With
T = α + β·tokens + γ·context this closes to T = α / (1 - ρ), where ρ = λ·(β·I + O·(β + γ·c)) is the part
of the time that is work rather than the step's fixed cost, and c the keys that a sequence reads.

That is the mean. How many sequences there are varies as Poisson's law has it (an M/G/∞ queue, whatever the
lengths), and N replicas share one queue: a percentile p of a replica's batch is n + z(p)·√(n / N). Where ρ is
high, one more sequence makes all others stay longer, so the variance is that over 1 - ρ, as in an M/G/1 queue
that shares its server. So a large fleet needs a smaller part in reserve than a small one.

How many requests come is not known either. That more come than expected, and that the batch of those that
come is large, are chance of two kinds that know nothing of each other, so both are seldom at their worst at
once: their deviations add up as squares. A count has to bear each of the cases that are as bad (a
first-order reliability method).
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from statistics import NormalDist
from typing import NamedTuple

from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.policy import DEFAULT_PERCENTILE, Objective

NEARLY_ALL = 0.95
"""The part of the time that a replica is planned to work at most. Beyond it queues have no bound."""
LEAST_DOUBT = 0.05
"""The part of a target by which an idle replica must miss it before it is called out of reach."""
DEFAULT_SPREAD = 1.0
"""Of the logarithm of lengths, while it is not known: 0.99 and 0.86 in Azure's conversations of 2023."""
LIMIT_SATURATION, LIMIT_SLOTS, LIMIT_KV = "saturation", "slots", "kvCache"


@dataclass(frozen=True)
class Replica:
    """One replica serving requests of a mean shape. Sizes in tokens."""

    model: LatencyModel
    prompt_tokens: float
    generation_tokens: float
    context_tokens: float
    """Keys that a sequence in the batch reads on average."""
    max_sequences: float | None = None
    kv_tokens: float | None = None
    prompt_spread: float = DEFAULT_SPREAD
    """Standard deviation of the logarithm of a prompt's length."""
    generation_spread: float = DEFAULT_SPREAD

    @cached_property
    def work_seconds(self) -> float:
        """Work of one request that no batching spares."""
        decode = self.generation_tokens * (self.model.beta + self.model.gamma * self.context_tokens)
        return max(self.prefill_seconds + decode, 1e-9)

    @cached_property
    def prefill_seconds(self) -> float:
        """Work of one prompt."""
        return self.model.beta * self.prompt_tokens

    @cached_property
    def prefill_square(self) -> float:
        """Mean of the square of a prompt's work. Lengths are taken for lognormal."""
        return self.prefill_seconds**2 * math.exp(self.prompt_spread**2)

    def longest_prefill_seconds(self, percentile: int) -> float:
        """Return the percentile of a prompt's work."""
        spread = self.prompt_spread
        return self.prefill_seconds * math.exp(spread * deviations(percentile) - spread * spread / 2)

    @property
    def short_generation_tokens(self) -> float:
        """Return how long a short answer is, of which one prompt that comes meanwhile delays every token."""
        spread = self.generation_spread
        return max(self.generation_tokens * math.exp(-spread - spread * spread / 2), 1.0)

    @cached_property
    def lone_rate(self) -> float:
        """Requests per second at which a replica computes one sequence on average."""
        return 1 / (self.generation_tokens * max(self.model.predict(1, self.context_tokens), 1e-9))

    @property
    def highest_rate(self) -> float:
        """Requests per second beyond which there is more work than time, or the mean batch has no room."""
        filling = self.room / max(self.generation_tokens * self.model.alpha, 1e-9)
        return min(NEARLY_ALL / self.work_seconds, max(filling, self.lone_rate))

    @property
    def room(self) -> float:
        """Sequences that a replica can hold: infinity where nothing is known to limit them."""
        return min(self._limits().values(), default=math.inf)

    @property
    def room_limit(self) -> str:
        """Name what limits the sequences."""
        limits = self._limits()
        return min(limits, key=lambda name: limits[name], default=LIMIT_SATURATION)

    def _limits(self) -> dict[str, float]:
        found = {}
        if self.max_sequences is not None:
            found[LIMIT_SLOTS] = self.max_sequences
        if self.kv_tokens is not None:
            found[LIMIT_KV] = max(self.kv_tokens / max(self.context_tokens, 1.0), 1.0)
        return found

    def stay_seconds(self, rate: float) -> float:
        """Return how long a request is in the batch at a replica's share of the load."""
        share = min(rate, NEARLY_ALL / self.work_seconds)
        return self.count_sequences(share) / share if share > 0 else 0.0

    def is_saturated(self, rate: float) -> bool:
        """Whether a replica's share of the load is more than it can work off."""
        return rate * self.work_seconds > NEARLY_ALL

    def count_sequences(self, rate: float) -> float:
        """Return the mean batch at a rate under saturation."""
        idle = max(1 - rate * self.work_seconds, 1e-6)
        return rate * self.generation_tokens * self.model.alpha / idle


@dataclass(frozen=True)
class Demand:
    """A load as it is expected, and by how much more may come, in requests a second."""

    expected: float
    margin: float = 0.0
    """The percentile of what comes, over what is expected."""

    @property
    def planned(self) -> float:
        """The most that is to be expected."""
        return self.expected + self.margin

    def times(self, factor: float) -> "Demand":
        """Return so many times the load."""
        return Demand(factor * self.expected, factor * self.margin)


class Case(NamedTuple):
    """How bad it may be: the part of the margin that comes, and of a batch's deviations."""

    more: float
    chance: float


BAD_CASES = (Case(1.0, 0.0), Case(math.sqrt(0.5), math.sqrt(0.5)), Case(0.0, 1.0))
"""Equally seldom. Both at their worst at once took a tenth more replicas on two simulated days (W4 and W5,
eight hours, measured once by hand), and with either 99.7 % were in time."""


@dataclass(frozen=True)
class Fleet:
    """So many replicas that share a load of requests a second."""

    replica: Replica
    replicas: int
    rate: float
    chance: float = 1.0
    """The part of a batch's deviations that is reckoned with."""

    @cached_property
    def share(self) -> float:
        """Requests a second of one replica."""
        return self.rate / self.replicas

    @cached_property
    def mean_sequences(self) -> float:
        """A replica's batch."""
        return self.replica.count_sequences(self.share)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of a replica's batch that is reckoned with."""
        idle = max(1 - self.share * self.replica.work_seconds, 1e-6)
        return self.chance * math.sqrt(self.mean_sequences / idle / self.replicas)

    def sequences(self, percentile: int) -> float:
        """Return the percentile of a replica's batch."""
        return self.mean_sequences + deviations(percentile) * self.deviation

    def step_seconds(self, percentile: int) -> float:
        """Return the percentile of a step's time, with the prompts that come meanwhile."""
        replica = self.replica
        batch = max(self.sequences(percentile), 1.0)
        alone = replica.model.predict(batch, batch * replica.context_tokens)
        return alone / max(1 - self.share * replica.prefill_seconds, 1e-6)

    def latency_seconds(self, objective: Objective) -> float:
        """Return the objective's percentile under saturation."""
        percentile, replica = objective.percentile, self.replica
        step = self.step_seconds(percentile)
        if objective.metric == "TimePerOutputToken":
            # Prompts come by chance: over m tokens they add a mean, which is in `step`, and λ·m·T·E[S²].
            variance = self.share * step * replica.prefill_square / replica.short_generation_tokens
            return step + deviations(percentile) * math.sqrt(variance)
        # The rest of the running step and the own one, the own prompt, and those before in an M/G/1 queue.
        idle = max(1 - self.share * replica.prefill_seconds, 1e-6)
        behind = self.share * replica.prefill_square / (2 * idle)
        own = replica.longest_prefill_seconds(percentile)
        return 1.5 * step + own - math.log(1 - percentile / 100) * behind

    def find_limit(self, objectives: Collection[Objective]) -> str | None:
        """Name what this load is too much for; None where it fits."""
        if self.replica.is_saturated(self.share):
            return LIMIT_SATURATION
        if self.share <= self.replica.lone_rate:
            return None
        highest = max((objective.percentile for objective in objectives), default=DEFAULT_PERCENTILE)
        if self.sequences(highest) > self.replica.room:
            return self.replica.room_limit
        return next((o.name for o in objectives if self.latency_seconds(o) > o.target_seconds), None)


@lru_cache
def deviations(percentile: int) -> float:
    """Return how many standard deviations a percentile lies above the mean."""
    return max(NormalDist().inv_cdf(percentile / 100), 0.0)


@dataclass(frozen=True)
class Capacity:
    """What one of so many replicas carries, and what limits it."""

    rate: float
    """Requests per second of one replica."""
    limit: str


def find_infeasible(
    replica: Replica, objectives: Collection[Objective], known_infeasible: Collection[str] = ()
) -> tuple[str, ...]:
    """Name the objectives that an idle replica misses: more replicas would not help.

    It must be missed by more than the model may err; what was out of reach stays so until an idle replica is
    in time.
    """
    return tuple(_list_infeasible(replica, objectives, known_infeasible))


def _list_infeasible(
    replica: Replica, objectives: Collection[Objective], known_infeasible: Collection[str]
) -> Iterator[str]:
    idle = Fleet(replica, 1, 0.0)
    for objective in objectives:
        doubt = max(LEAST_DOUBT, replica.model.relative_error or 0.0)
        allowed = 1.0 if objective.name in known_infeasible else 1 + doubt
        if idle.latency_seconds(objective) > allowed * objective.target_seconds:
            yield objective.name


def list_reachable(replica: Replica, objectives: Collection[Objective]) -> list[Objective]:
    """Return the objectives that an idle replica meets: no count would meet another."""
    idle = Fleet(replica, 1, 0.0)
    return [each for each in objectives if idle.latency_seconds(each) <= each.target_seconds]


def find_count(replica: Replica, objectives: Collection[Objective], demand: Demand, most: int) -> int:
    """Return the least number of replicas, up to `most`, that bear each of the bad cases of a load."""
    count = min(max(math.ceil(demand.expected * replica.work_seconds / NEARLY_ALL), 1), most)
    for case in BAD_CASES:
        rate = demand.expected + case.more * demand.margin
        fits = partial(_fits, replica, objectives, rate, case.chance)
        count = _find_least(count, most, fits)
    return count


def _fits(
    replica: Replica, objectives: Collection[Objective], rate: float, chance: float, replicas: int
) -> bool:
    return Fleet(replica, replicas, rate, chance).find_limit(objectives) is None


def _find_least(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the least count that fits, or `most`. It is looked for near the least that it may be."""
    low, step = least, 1
    while low < most and not fits(min(low + step - 1, most)):
        low, step = min(low + step, most), 2 * step
    high = min(low + step - 1, most)
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def find_capacity(replica: Replica, objectives: Collection[Objective], replicas: int) -> Capacity:
    """Return what one of so many replicas carries at most, and what would be the first to give."""
    low, high = 0.0, replica.highest_rate
    limit = LIMIT_SATURATION
    if (found := Fleet(replica, replicas, high * replicas).find_limit(objectives)) is not None:
        limit = found
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if (found := Fleet(replica, replicas, middle * replicas).find_limit(objectives)) is None:
                low = middle
            else:
                high, limit = middle, found
        high = low
    return Capacity(max(high, min(replica.lone_rate, replica.highest_rate)), limit)


BISECTIONS = 12
