"""Which part of the requests so many replicas would serve in time, and how true such words have been. Pure.

The model's latency grows with the part of the requests that it speaks of, so the part in time is where it
crosses the target. Whether that can be told to people is measured: what was predicted for the replicas there
were is compared with what came.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millrace_operator.autoscale.observation import Bracket, Latency
from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.pool import Pool
from millrace_operator.autoscale.replica import Replica

SHARES = (*(n / 100 for n in range(100)), *(n / 1000 for n in range(991, 1000)))
"""The parts that are told apart: 1 %, and 0.1 % beyond 99 %."""
REMEMBERED_SECONDS = 3600.0
LEAST_SECONDS, LEAST_REQUESTS = 600.0, 300.0
"""Compared before predictions are known to be true. 95 % of 300 has a standard deviation of 1.3 %."""
LARGEST_ERROR = 0.02
"""Predictions that were off by more are not told."""


def find_attainment(pool: Pool, objective: Objective) -> float:
    """Return the part of the requests that a pool serves in time; 0 where its queue would only grow."""
    if pool.replica.is_saturated(pool.share):
        return 0.0
    number = bisect_right(
        SHARES, objective.target_seconds, key=lambda share: pool.find_latency(objective.metric, share)
    )
    if pool.replica.room < math.inf:
        number = min(number, bisect_right(SHARES, pool.replica.room, key=pool.sequences))
    return SHARES[number - 1] if number else 0.0


def predict(
    replica: Replica, objectives: Collection[Objective], rate: float, replicas: int
) -> dict[str, float]:
    """Return by objective's name the part of a load, in requests a second, that is served in time."""
    pool = Pool(replica, replicas, rate)
    return {objective.name: find_attainment(pool, objective) for objective in objectives}


@dataclass(frozen=True)
class Calibration:
    """By how much predictions were off, averaged over the requests of the last hour."""

    biases: Mapping[str, float] = field(default_factory=dict)
    """What was predicted less what came, by the objective's name."""
    requests: float = 0.0
    """How many these averages are worth."""
    seconds: float = 0.0
    """Compared so far."""
    judged_at: float | None = None

    @property
    def error(self) -> float | None:
        """Return by how much the worst was off; None while too little was compared."""
        if self.seconds < LEAST_SECONDS or self.requests < LEAST_REQUESTS:
            return None
        return max((abs(bias) for bias in self.biases.values()), default=None)

    @property
    def is_true(self) -> bool:
        """Whether predictions may be told."""
        return self.error is not None and self.error <= LARGEST_ERROR

    def is_due(self, now: float, window: float) -> bool:
        """Whether what is measured has nothing in common any more with what was compared last."""
        return self.judged_at is None or now - self.judged_at >= window

    def judge(
        self, now: float, predicted: Mapping[str, float], latencies: Collection[Latency], window: float
    ) -> "Calibration":
        """Compare what was predicted for each objective with what its window shows."""
        seen = {
            latency.objective.name: _find_bias(predicted[latency.objective.name], latency.bracket)
            for latency in latencies
            if latency.bracket and latency.num_samples > 0 and latency.objective.name in predicted
        }
        if not seen:
            return self
        count = max(latency.num_samples for latency in latencies)
        kept = self.requests * math.exp(-window / REMEMBERED_SECONDS)
        new = count / (kept + count)
        biases = {
            name: (1 - new) * self.biases.get(name, 0.0) + new * seen.get(name, 0.0)
            for name in self.biases.keys() | seen.keys()
        }
        return Calibration(biases, kept + count, self.seconds + window, now)


def _find_bias(predicted: float, bracket: Bracket) -> float:
    """Return by how much a prediction is outside of what a histogram says for certain."""
    return predicted - min(max(predicted, bracket.lower_share), bracket.upper_share)
