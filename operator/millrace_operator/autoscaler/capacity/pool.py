"""How late tokens are when so many replicas share a load. Pure.

`Replica` has the mean. How many sequences there are varies as Poisson's law has it (an M/G/∞ queue, whatever
the lengths), and N replicas share one queue: a percentile p of a replica's batch is n + z(p)·√(n / N). Where
ρ is high, one more sequence makes all others stay longer, so the variance is that over 1 - ρ, as in an M/G/1
queue that shares its server. So a large pool needs a smaller part in reserve than a small one.
"""

import math
from collections.abc import Collection

from millrace_operator.autoscaler.capacity.replica import LIMIT_SATURATION, Replica, deviations, find_between
from millrace_operator.autoscaler.decide.policy import DEFAULT_PERCENTILE, LatencyMetric, Objective


class Pool:
    """So many replicas that share a load of requests a second. What it is made of does not change."""

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
        """`chance` is the part of a batch's deviations that is reckoned with."""
        self.replica = replica
        self.replicas = replicas
        self.share = rate / replicas
        """Requests a second of one replica."""
        self.mean_sequences = replica.count_sequences(self.share)
        """A replica's batch."""
        idle = max(1 - self.share * replica.work_seconds, 1e-6)
        self.deviation = chance * math.sqrt(self.mean_sequences / idle / replicas)
        """The standard deviation of a replica's batch that is reckoned with."""
        self._between_prompts = max(1 - self.share * replica.prefill_seconds, 1e-6)
        """The part of the time in which no prompt is computed."""
        self._behind_seconds = self.share * replica.prefill_square / (2 * self._between_prompts)
        """The mean wait behind the prompts that came before, as in an M/G/1 queue."""

    def sequences(self, share: float) -> float:
        """Return what a replica's batch is at most in this part of the time."""
        return self.mean_sequences + deviations(share) * self.deviation

    def decode_seconds(self, share: float) -> float:
        """Return what this part of the steps takes at most without any prompt."""
        batch = max(self.sequences(share), 1.0)
        return self.replica.model.predict(batch, batch * self.replica.context_tokens)

    def step_seconds(self, share: float) -> float:
        """Return what this part of the steps takes at most, with the prompts that come meanwhile."""
        return self.decode_seconds(share) / self._between_prompts

    def latency_seconds(self, objective: Objective) -> float:
        """Return the objective's percentile under saturation."""
        return self.find_latency(objective.metric, objective.percentile / 100)

    def find_latency(self, metric: LatencyMetric, share: float) -> float:
        """Return within how many seconds this part of the requests is served, under saturation."""
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
        """Return the rest of the running step and the own one, the own prompt, and those before."""
        prompt = self.replica.longest_prefill_seconds(share)
        return 1.5 * self.step_seconds(share) + prompt - math.log(1 - share) * self._behind_seconds

    def _find_output_token(self, share: float) -> float:
        """Return a step with the prompts that come meanwhile.

        They come by chance: over m tokens they add a mean, which is in the step, and a variance λ·m·T·E[S²].
        """
        replica, step = self.replica, self.step_seconds(share)
        variance = self.share * step * replica.prefill_square / replica.short_generation_tokens
        return step + deviations(share) * math.sqrt(variance)

    def _find_queue_time(self, share: float) -> float:
        """Return the rest of the running step: all that wait begin with the next one.

        Requests come at any moment. So λ·E[max(S - w, 0)] is the part of them that comes while more than w
        of a prompt's work S is left. The others find a step without a prompt. The gateway gives requests to
        the replica with the fewest, which is seldom the one that has just begun a prompt: of N replicas in
        the simulator about ½ + 1/N of such moments were met (0.9 to 1.4 times that at P95, for 1 to 18
        replicas of three kinds, measured once by hand).

        A step is taken to run on an idle replica too. Else a target shorter than a step would seem to be in
        reach, and would ask for as many replicas as there are requests.
        """
        step, met = self.decode_seconds(0.5), self.share * min(0.5 + 1 / self.replicas, 1.0)
        behind_prompt = met * self.replica.prefill_seconds
        if 1 - share >= behind_prompt:
            return step * share / (1 - behind_prompt)
        return step + self.replica.find_prefill_left((1 - share) / met)

    def _find_whole_request(self, share: float) -> float:
        """Return the mean wait and prompt, and a step for each token of a long answer.

        Of the wait the mean is enough: it is short beside the tokens. Long answers and slow steps are chance
        of two kinds that know nothing of each other, so both are seldom at their worst at once: the worst of
        three cases counts that are as seldom, as with the bad cases of a load. It is nearly always that of a
        long answer with common steps, since lengths vary the most.
        """
        replica, between = self.replica, find_between(share)
        wait = self.step_seconds(0.5) / 2 + self._behind_seconds + replica.prefill_seconds
        cases = ((share, 0.5), (between, between), (min(share, 0.5), share))
        return wait + max(
            replica.longest_generation_tokens(long) * self.step_seconds(slow) for long, slow in cases
        )

    def find_limit(self, objectives: Collection[Objective]) -> str | None:
        """Name what this load is too much for; None where it fits."""
        if self.replica.is_saturated(self.share):
            return LIMIT_SATURATION
        if self.share <= self.replica.lone_rate:
            return None
        highest = max((objective.percentile for objective in objectives), default=DEFAULT_PERCENTILE)
        if self.sequences(highest / 100) > self.replica.room:
            return self.replica.room_limit
        return next((o.name for o in objectives if self.latency_seconds(o) > o.target_seconds), None)
