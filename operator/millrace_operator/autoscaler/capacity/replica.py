"""A replica's work under its share of a load. Pure.

A replica's share of the load is λ requests a second, with I prompt and O generated tokens each. A step of n
sequences also prefills the λ·I·T tokens that arrive during it, and Little's law gives n = λ·O·T. With
T = α + β·tokens + γ·context this closes to T = α / (1 - ρ), where ρ = λ·(β·I + O·(β + γ·c)) is the part
of the time that is work rather than the step's fixed cost, and c the keys that a sequence reads.

A prompt counts as cached whole or not at all, so a prefix cache leaves λ·(1 - h) whole prompts a second. If
long and short prompts are cached alike, no other law with that mean makes their work vary more. Cached keys
are read, and count as held. With drafts an answer takes fewer steps. At saturation they save nothing, since
the engine drafts less then.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.signals.lengths import AnswerLengths
from millrace_operator.autoscaler.signals.savings import NO_DRAFTS, Drafts

NEARLY_ALL = 0.95
"""A plan lets a replica work at most this part of the time. Beyond it queues grow without bound."""
DEFAULT_SPREAD = 1.0
"""The spread of lengths' logarithms while it is unknown: 0.99 and 0.86 in Azure's conversations of 2023."""
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
    """As measured; None means lognormal, with the mean and the spread above."""
    cached_share: float = 0.0
    """The part of the prompts' tokens that its prefix cache has."""
    drafts: Drafts = NO_DRAFTS

    @cached_property
    def work_seconds(self) -> float:
        """Work of one request that batching does not save."""
        beta, read = self.model.beta, self.model.gamma * self.context_tokens
        written = self.drafts.written_per_step(1.0)
        drafting = (beta * self.drafts.computed_per_step(1.0) + read) / written
        decode = self.generation_tokens * max(beta + read, drafting)
        return max(self.computed_share * self.prefill_seconds + decode, 1e-9)

    @property
    def computed_share(self) -> float:
        """The part of the prompts that is computed."""
        return 1 - self.cached_share

    @cached_property
    def prefill_seconds(self) -> float:
        """Work of one prompt that is computed."""
        return self.model.beta * self.prompt_tokens

    @cached_property
    def prefill_square(self) -> float:
        """Mean of the square of a prompt's work. Lengths count as lognormal."""
        return self.prefill_seconds**2 * math.exp(self.prompt_spread**2)

    def longest_prefill_seconds(self, share: float) -> float:
        """Return the largest work among this part of the prompts.

        A cache may have some prompts whole, or a part of each. The worse case counts.
        """
        of_each = self.computed_share * self._find_longest(share)
        if share <= self.cached_share:
            return of_each
        return max(of_each, self._find_longest((share - self.cached_share) / self.computed_share))

    def _find_longest(self, share: float) -> float:
        """Return the largest work among this part of the prompts that are computed whole."""
        spread = self.prompt_spread
        return self.prefill_seconds * math.exp(spread * deviations(share) - spread * spread / 2)

    def find_prefill_left(self, mean_left: float) -> float:
        """Return the seconds w after which so much of a prompt's work S is left on average: E[max(S - w, 0)].

        A shorter prompt has nothing left.
        """
        low, high = 0.0, self.prefill_seconds
        while self._find_mean_left(high) > mean_left:
            low, high = high, 2 * high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._find_mean_left(middle) > mean_left else (low, middle)
        return high

    def _find_mean_left(self, seconds: float) -> float:
        """Return E[max(S - w, 0)] of a lognormal S."""
        mean, spread = self.prefill_seconds, self.prompt_spread
        if seconds <= 0 or spread <= 0:
            return max(mean - seconds, 0.0)
        above = math.log(mean / seconds) / spread + spread / 2
        return mean * NORMAL.cdf(above) - seconds * NORMAL.cdf(above - spread)

    @property
    def short_generation_tokens(self) -> float:
        """The tokens of a short answer: one prompt that comes meanwhile delays each of them."""
        spread = self.generation_spread
        return max(self.generation_tokens * math.exp(-spread - spread * spread / 2), 1.0)

    def longest_generation_tokens(self, share: float) -> float:
        """Return the largest number of tokens among this part of the answers."""
        if self.answer_lengths is not None:
            return self.answer_lengths.quantile(share)
        spread = self.generation_spread
        return max(self.generation_tokens * math.exp(spread * deviations(share) - spread * spread / 2), 1.0)

    @cached_property
    def lone_rate(self) -> float:
        """Requests per second at which a replica computes one sequence on average."""
        steps = self.generation_tokens / self.drafts.written_per_step(1.0)
        return 1 / (steps * max(self.decode_seconds(1.0), 1e-9))

    @cached_property
    def highest_rate(self) -> float:
        """Requests per second beyond which the work exceeds the time, or the mean batch exceeds the room."""
        written = self.room * self.drafts.written_per_step(self.room)
        filling = written / max(self.generation_tokens * self.model.alpha, 1e-9)
        return min(NEARLY_ALL / self.work_seconds, max(filling, self.lone_rate))

    @cached_property
    def room(self) -> float:
        """Sequences that a replica can hold: infinity if no limit is known."""
        return min(self._limits().values(), default=math.inf)

    @property
    def room_limit(self) -> str:
        """Name the limit of the sequences."""
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
        """Return how long a request stays in the batch at a replica's share of the load."""
        share = min(rate, NEARLY_ALL / self.work_seconds)
        return self.count_sequences(share) / share if share > 0 else 0.0

    def is_saturated(self, rate: float) -> bool:
        """Whether a replica's share of the load is more than it can serve."""
        return rate * self.work_seconds > NEARLY_ALL

    def count_sequences(self, rate: float) -> float:
        """Return the mean batch at a rate under saturation."""
        idle = max(1 - rate * self.work_seconds, 1e-6)
        batch = rate * self.generation_tokens * self.model.alpha / idle
        return batch / self.drafts.written_per_step(batch)

    def decode_seconds(self, batch: float) -> float:
        """Return the seconds of a step of so many sequences, without any prompt."""
        return self.model.predict(*self._size_step(batch))

    def standard_error(self, batch: float) -> float:
        """Return the relative error of such a step's time that comes from too few like it."""
        return self.model.standard_error(*self._size_step(batch))

    def _size_step(self, batch: float) -> tuple[float, float]:
        """Return the tokens that such a step computes, and the context tokens that it reads."""
        return batch * self.drafts.computed_per_step(batch), batch * self.context_tokens


@lru_cache
def find_joint_share(share: float) -> float:
    """Return the part at 0.71 of this part's deviations: two such chances at once are equally seldom."""
    return NORMAL.cdf(math.sqrt(0.5) * deviations(share)) if share > 0.5 else share


@lru_cache
def deviations(share: float) -> float:
    """Return the quantile of a normal law, in standard deviations above the mean; 0 below the mean."""
    return max(NORMAL.inv_cdf(share), 0.0) if share > 0 else 0.0
