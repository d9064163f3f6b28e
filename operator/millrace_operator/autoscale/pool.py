"""How late tokens are when so many replicas share a load. Pure.

`Replica` has the mean. How many sequences there are varies as Poisson's law has it (an M/G/∞ queue, whatever
the lengths), and N replicas share one queue: a percentile p of a replica's batch is n + z(p)·√(n / N). Where
ρ is high, one more sequence makes all others stay longer, so the variance is that over 1 - ρ, as in an M/G/1
queue that shares its server. So a large pool needs a smaller part in reserve than a small one.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from millrace_operator.autoscale.policy import DEFAULT_PERCENTILE, LatencyMetric, Objective
from millrace_operator.autoscale.replica import LIMIT_SATURATION, Replica, deviations


@dataclass(frozen=True)
class Pool:
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

    def sequences(self, share: float) -> float:
        """Return what a replica's batch is at most in this part of the time."""
        return self.mean_sequences + deviations(share) * self.deviation

    def step_seconds(self, share: float) -> float:
        """Return what this part of the steps takes at most, with the prompts that come meanwhile."""
        replica = self.replica
        batch = max(self.sequences(share), 1.0)
        alone = replica.model.predict(batch, batch * replica.context_tokens)
        return alone / max(1 - self.share * replica.prefill_seconds, 1e-6)

    def latency_seconds(self, objective: Objective) -> float:
        """Return the objective's percentile under saturation."""
        return self.find_latency(objective.metric, objective.percentile / 100)

    def find_latency(self, metric: LatencyMetric, share: float) -> float:
        """Return within how many seconds this part of the requests is served, under saturation."""
        replica, step = self.replica, self.step_seconds(share)
        if metric == "TimePerOutputToken":
            # Prompts come by chance: over m tokens they add a mean, which is in `step`, and λ·m·T·E[S²].
            variance = self.share * step * replica.prefill_square / replica.short_generation_tokens
            return step + deviations(share) * math.sqrt(variance)
        # The rest of the running step and the own one, the own prompt, and those before in an M/G/1 queue.
        idle = max(1 - self.share * replica.prefill_seconds, 1e-6)
        behind = self.share * replica.prefill_square / (2 * idle)
        return 1.5 * step + replica.longest_prefill_seconds(share) - math.log(1 - share) * behind

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
