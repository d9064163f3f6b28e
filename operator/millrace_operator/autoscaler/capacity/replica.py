"""What one replica does, by its model and the shape of its requests. Pure.

A replica's share of the load is λ requests a second, with I prompt and O generated tokens each. A step of n
sequences also prefills the λ·I·T tokens that arrive during it, and Little's law gives n = λ·O·T. With
T = α + β·tokens + γ·context this closes to T = α / (1 - ρ), where ρ = λ·(β·I + O·(β + γ·c)) is the part
of the time that is work rather than the step's fixed cost, and c the keys that a sequence reads.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.signals.lengths import AnswerLengths

NEARLY_ALL = 0.95
"""The part of the time that a replica is planned to work at most. Beyond it queues have no bound."""
DEFAULT_SPREAD = 1.0
"""Of the logarithm of lengths, while it is not known: 0.99 and 0.86 in Azure's conversations of 2023."""
BISECTIONS = 20
NORMAL = NormalDist()
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
    answer_lengths: AnswerLengths | None = None
    """As measured; None: lognormal, with the mean and the spread above."""

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

    def longest_prefill_seconds(self, share: float) -> float:
        """Return the work that this part of the prompts takes at most."""
        spread = self.prompt_spread
        return self.prefill_seconds * math.exp(spread * deviations(share) - spread * spread / 2)

    def find_prefill_left(self, mean_left: float) -> float:
        """Return after how many seconds w so much of a prompt's work S is left on average: E[max(S - w, 0)].

        Of shorter prompts nothing is left.
        """
        low, high = 0.0, self.prefill_seconds
        while self._mean_left(high) > mean_left:
            low, high = high, 2 * high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_left(middle) > mean_left else (low, middle)
        return high

    def _mean_left(self, seconds: float) -> float:
        """Return E[max(S - w, 0)] of a lognormal S."""
        mean, spread = self.prefill_seconds, self.prompt_spread
        if seconds <= 0 or spread <= 0:
            return max(mean - seconds, 0.0)
        above = math.log(mean / seconds) / spread + spread / 2
        return mean * NORMAL.cdf(above) - seconds * NORMAL.cdf(above - spread)

    @property
    def short_generation_tokens(self) -> float:
        """Return how long a short answer is, of which one prompt that comes meanwhile delays every token."""
        spread = self.generation_spread
        return max(self.generation_tokens * math.exp(-spread - spread * spread / 2), 1.0)

    def longest_generation_tokens(self, share: float) -> float:
        """Return how many tokens this part of the answers has at most."""
        if self.answer_lengths is not None:
            return self.answer_lengths.quantile(share)
        spread = self.generation_spread
        return max(self.generation_tokens * math.exp(spread * deviations(share) - spread * spread / 2), 1.0)

    @cached_property
    def lone_rate(self) -> float:
        """Requests per second at which a replica computes one sequence on average."""
        return 1 / (self.generation_tokens * max(self.model.predict(1, self.context_tokens), 1e-9))

    @cached_property
    def highest_rate(self) -> float:
        """Requests per second beyond which there is more work than time, or the mean batch has no room."""
        filling = self.room / max(self.generation_tokens * self.model.alpha, 1e-9)
        return min(NEARLY_ALL / self.work_seconds, max(filling, self.lone_rate))

    @cached_property
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


@lru_cache
def find_between(share: float) -> float:
    """Return the part at 0.71 of the deviations of this one: two such chances at once are as seldom."""
    return NORMAL.cdf(math.sqrt(0.5) * deviations(share)) if share > 0.5 else share


@lru_cache
def deviations(share: float) -> float:
    """Return how many standard deviations above the mean a part of what is normal ends; 0 under the mean."""
    return max(NORMAL.inv_cdf(share), 0.0) if share > 0 else 0.0
