"""A replica's work under its share of a load, and the latencies of a pool of replicas. Pure.

A replica's share of the load is λ requests a second, with I prompt and O generated tokens each. A step of n
sequences also prefills the λ·I·T tokens that arrive during it, and Little's law gives n = λ·O·T. With
T = α + β·tokens + γ·context this closes to T = α / (1 - ρ), where ρ = λ·(β·I + O·(β + γ·c)) is the part
of the time that is work rather than the step's fixed cost, and c the keys that a sequence reads.

`Replica` has the means, and `Pool` the percentiles. The number of sequences varies as Poisson's law has it
(an M/G/∞ queue, for any lengths), and N replicas share one queue: a percentile p of a replica's batch is
n + z(p)·√(n / N). Where ρ is high, one more sequence makes all others stay longer, so the variance is that
over 1 - ρ, as in an M/G/1 queue that shares its server. So a large pool needs a smaller part in reserve than
a small one.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.policy import DEFAULT_PERCENTILE, LatencyMetric, Objective
from millrace_operator.autoscaler.signals.lengths import AnswerLengths

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

    @cached_property
    def work_seconds(self) -> float:
        """Work of one request that batching does not save."""
        decode = self.generation_tokens * (self.model.beta + self.model.gamma * self.context_tokens)
        return max(self.prefill_seconds + decode, 1e-9)

    @cached_property
    def prefill_seconds(self) -> float:
        """Work of one prompt."""
        return self.model.beta * self.prompt_tokens

    @cached_property
    def prefill_square(self) -> float:
        """Mean of the square of a prompt's work. Lengths count as lognormal."""
        return self.prefill_seconds**2 * math.exp(self.prompt_spread**2)

    def longest_prefill_seconds(self, share: float) -> float:
        """Return the largest work among this part of the prompts."""
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
        """Return the tokens of a short answer: one prompt that comes meanwhile delays each of them."""
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
        return 1 / (self.generation_tokens * max(self.model.predict(1, self.context_tokens), 1e-9))

    @cached_property
    def highest_rate(self) -> float:
        """Requests per second beyond which the work exceeds the time, or the mean batch exceeds the room."""
        filling = self.room / max(self.generation_tokens * self.model.alpha, 1e-9)
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
        return rate * self.generation_tokens * self.model.alpha / idle


@lru_cache
def find_joint_share(share: float) -> float:
    """Return the part at 0.71 of this part's deviations: two such chances at once are equally seldom."""
    return NORMAL.cdf(math.sqrt(0.5) * deviations(share)) if share > 0.5 else share


@lru_cache
def deviations(share: float) -> float:
    """Return the quantile of a normal law, in standard deviations above the mean; 0 below the mean."""
    return max(NORMAL.inv_cdf(share), 0.0) if share > 0 else 0.0


class Pool:
    """Replicas that share a load in requests a second. Its fields do not change."""

    __slots__ = (
        "_behind_seconds",
        "_between_prompts",
        "deviation",
        "mean_sequences",
        "replica",
        "replicas",
        "share",
    )

    def __init__(self, replica: Replica, replicas: int, rate: float, chance: float = 1.0) -> None:
        """`chance` is the part of a batch's deviations to plan with."""
        self.replica = replica
        self.replicas = replicas
        self.share = rate / replicas
        """Requests a second of one replica."""
        self.mean_sequences = replica.count_sequences(self.share)
        """A replica's batch."""
        idle = max(1 - self.share * replica.work_seconds, 1e-6)
        self.deviation = chance * math.sqrt(self.mean_sequences / idle / replicas)
        """The standard deviation of a replica's batch to plan with."""
        self._between_prompts = max(1 - self.share * replica.prefill_seconds, 1e-6)
        """The part of the time without a prompt."""
        self._behind_seconds = self.share * replica.prefill_square / (2 * self._between_prompts)
        """The mean wait behind earlier prompts, as in an M/G/1 queue."""

    def sequences(self, share: float) -> float:
        """Return the largest batch of a replica in this part of the time."""
        return self.mean_sequences + deviations(share) * self.deviation

    def decode_seconds(self, share: float) -> float:
        """Return the longest time of this part of the steps without any prompt."""
        batch = max(self.sequences(share), 1.0)
        return self.replica.model.predict(batch, batch * self.replica.context_tokens)

    def step_seconds(self, share: float) -> float:
        """Return the longest time of this part of the steps, with the prompts that come meanwhile."""
        return self.decode_seconds(share) / self._between_prompts

    def latency_seconds(self, objective: Objective) -> float:
        """Return the objective's percentile under saturation."""
        return self.find_latency(objective.metric, objective.percentile / 100)

    def find_latency(self, metric: LatencyMetric, share: float) -> float:
        """Return the seconds within which this part of the requests is served, under saturation."""
        match metric:
            case "TimeToFirstToken":
                return self._find_first_token(share)
            case "TimePerOutputToken":
                return self._find_output_token(share)
            case "QueueTime":
                return self._find_queue_time(share)
            case "EndToEndLatency":
                return self._find_whole_request(share)

    def _find_first_token(self, share: float) -> float:
        """Return the rest of the running step, the own step, the own prompt, and the prompts before it."""
        prompt = self.replica.longest_prefill_seconds(share)
        return 1.5 * self.step_seconds(share) + prompt - math.log(1 - share) * self._behind_seconds

    def _find_output_token(self, share: float) -> float:
        """Return the time of a step with the prompts that come meanwhile.

        Prompts come by chance: over m tokens they add a mean, which is in the step, and a variance
        λ·m·T·E[S²].
        """
        replica, step = self.replica, self.step_seconds(share)
        variance = self.share * step * replica.prefill_square / replica.short_generation_tokens
        return step + deviations(share) * math.sqrt(variance)

    def _find_queue_time(self, share: float) -> float:
        """Return the rest of the running step: all waiting requests begin with the next one.

        Requests come at any moment. So λ·E[max(S - w, 0)] is the part of them that comes while more than w of
        a prompt's work S is left. The others find a step without a prompt. The gateway gives requests to the
        replica with the fewest, which has seldom just begun a prompt: of N replicas in the simulator about ½
        + 1/N of such moments were met (0.9 to 1.4 times that at P95, for 1 to 18 replicas of three kinds,
        measured once by hand).

        An idle replica counts as running a step too. Otherwise a target shorter than a step would seem to be
        in reach, and would ask for as many replicas as there are requests.
        """
        step, met = self.decode_seconds(0.5), self.share * min(0.5 + 1 / self.replicas, 1.0)
        behind_prompt = met * self.replica.prefill_seconds
        if 1 - share >= behind_prompt:
            return step * share / (1 - behind_prompt)
        return step + self.replica.find_prefill_left((1 - share) / met)

    def _find_whole_request(self, share: float) -> float:
        """Return the mean wait and prompt, and a step for each token of a long answer.

        The mean of the wait is enough: it is short beside the tokens. Long answers and slow steps are
        independent chances, so they are seldom at their worst at once. As with the bad cases of a load, the
        worst of three equally seldom cases counts. It is nearly always the long answer with common steps,
        since lengths vary the most.
        """
        replica, between = self.replica, find_joint_share(share)
        wait = self.step_seconds(0.5) / 2 + self._behind_seconds + replica.prefill_seconds
        cases = ((share, 0.5), (between, between), (min(share, 0.5), share))
        return wait + max(
            replica.longest_generation_tokens(long) * self.step_seconds(slow) for long, slow in cases
        )

    def find_limit(self, objectives: Collection[Objective]) -> str | None:
        """Name the limit that this load exceeds; None if it fits."""
        if self.replica.is_saturated(self.share):
            return LIMIT_SATURATION
        if self.share <= self.replica.lone_rate:
            return None
        highest = max((objective.percentile for objective in objectives), default=DEFAULT_PERCENTILE)
        if self.sequences(highest / 100) > self.replica.room:
            return self.replica.room_limit
        return next((o.name for o in objectives if self.latency_seconds(o) > o.target_seconds), None)
