"""The latencies of a pool of replicas that share a load, in percentiles. Pure.

The number of sequences varies by Poisson's law (an M/G/∞ queue, for any lengths), and N replicas share one
queue: a percentile p of a replica's batch is n + z(p)·√(n / N). Where ρ is high, one more sequence makes all
others stay longer, so the variance is divided by 1 - ρ, as in an M/G/1 queue that shares its server. So a
large pool needs a smaller part in reserve than a small one. `replica` has n and ρ.
"""

import math
from collections.abc import Collection

from millrace_operator.autoscaler.capacity.replica import (
    LIMIT_SATURATION,
    Replica,
    deviations,
    find_joint_share,
)
from millrace_operator.autoscaler.decide.policy import DEFAULT_PERCENTILE, LatencyMetric, Objective


class Pool:
    """Replicas that share a load in requests a second. Its fields do not change."""

    __slots__ = (
        "_behind_seconds",
        "_between_prompts",
        "_prompts",
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
        self._prompts = self.share * replica.computed_share
        """Computed prompts a second of one replica."""
        self._between_prompts = max(1 - self._prompts * replica.prefill_seconds, 1e-6)
        """The part of the time without a prompt."""
        self._behind_seconds = self._prompts * replica.prefill_square / (2 * self._between_prompts)
        """The mean wait behind earlier prompts, as in an M/G/1 queue."""

    def sequences(self, share: float) -> float:
        """Return the largest batch of a replica in this part of the time."""
        return self.mean_sequences + deviations(share) * self.deviation

    def decode_seconds(self, share: float) -> float:
        """Return the longest time of this part of the steps without any prompt."""
        return self.replica.decode_seconds(max(self.sequences(share), 1.0))

    def step_seconds(self, share: float) -> float:
        """Return the longest time of this part of the steps, with the prompts that come meanwhile."""
        return self.decode_seconds(share) / self._between_prompts

    def token_seconds(self, share: float) -> float:
        """Return the longest time between two tokens of an answer in this part of the steps."""
        written = self.replica.drafts.written_per_step(max(self.sequences(share), 1.0))
        return self.step_seconds(share) / written

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
        """Return the rest of the running step, the request's own step and prompt, and earlier prompts."""
        prompt = self.replica.longest_prefill_seconds(share)
        return 1.5 * self.step_seconds(share) + prompt - math.log(1 - share) * self._behind_seconds

    def _find_output_token(self, share: float) -> float:
        """Return the time of a token with the prompts that come meanwhile.

        Prompts come by chance: over m tokens of T seconds they add a mean, which is in T, and a variance
        λ·m·T·E[S²].
        """
        replica, token = self.replica, self.token_seconds(share)
        variance = self._prompts * token * replica.prefill_square / replica.short_generation_tokens
        return token + deviations(share) * math.sqrt(variance)

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
        step, met = self.decode_seconds(0.5), self._prompts * min(0.5 + 1 / self.replicas, 1.0)
        behind_prompt = met * self.replica.prefill_seconds
        if 1 - share >= behind_prompt:
            return step * share / (1 - behind_prompt)
        return step + self.replica.find_prefill_left((1 - share) / met)

    def _find_whole_request(self, share: float) -> float:
        """Return the mean wait and prompt, and the time of each token of a long answer.

        The mean of the wait is enough: it is short beside the tokens. Long answers and slow steps are
        independent chances, so they are seldom at their worst at once. As with the bad cases of a load, the
        worst of three equally seldom cases counts. It is nearly always the long answer with common steps,
        since lengths vary the most.
        """
        replica, between = self.replica, find_joint_share(share)
        prompt = replica.computed_share * replica.prefill_seconds
        wait = self.step_seconds(0.5) / 2 + self._behind_seconds + prompt
        cases = ((share, 0.5), (between, between), (min(share, 0.5), share))
        return wait + max(
            replica.longest_generation_tokens(long) * self.token_seconds(slow) for long, slow in cases
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
