"""Predicts the part of the requests that replicas serve in time, and measures the predictions' error. Pure.

The model's latency at a percentile grows with the percentile, so the part in time is the percentile at which
it crosses the target. Predictions for the replicas that served are compared with the measurements. Only if
the error is small does `kubectl millrace explain` show predictions for other counts.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from millrace_operator.autoscaler.capacity.pool import Pool
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Bracket, Latency

SHARES = (*(n / 100 for n in range(100)), *(n / 1000 for n in range(991, 1000)))
"""The steps of the search: 1 %, and 0.1 % beyond 99 %."""
REMEMBERED_SECONDS = 3600.0
LEAST_SECONDS, LEAST_REQUESTS = 600.0, 300.0
"""The comparison needs so many. 95 % of 300 requests has a standard deviation of 1.3 %."""
LARGEST_ERROR = 0.02
"""`kubectl millrace explain` shows no predictions with a larger error."""


def find_attainment(pool: Pool, objective: Objective) -> float:
    """Return the part of the requests that a pool serves in time; 0 if its queue would only grow."""
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
) -> dict[Objective, float]:
    """Return for each objective the part of a load, in requests a second, that is served in time."""
    pool = Pool(replica, replicas, rate)
    return {objective: find_attainment(pool, objective) for objective in objectives}


def predict_seconds(replica: Replica, objective: Objective, rate: float, replicas: int) -> float | None:
    """Return the objective's percentile at a load; None if a queue grows or a batch exceeds the room."""
    pool = Pool(replica, replicas, rate)
    if replica.is_saturated(pool.share) or pool.sequences(objective.percentile / 100) > replica.room:
        return None
    return pool.latency_seconds(objective)


@dataclass(frozen=True)
class ErrorRecord:
    """The mean error of predictions for one objective, over the requests of the last hour."""

    bias: float = 0.0
    """The predicted part less the measured one."""
    requests: float = 0.0
    """The number of requests behind the average."""
    seconds: float = 0.0
    """The time compared so far."""
    judged_at: float = -math.inf

    def add(self, now: float, bias: float, requests: float, seconds: float) -> "ErrorRecord":
        """Return the record after one more window, of so many requests and seconds."""
        kept = self.requests * math.exp(-seconds / REMEMBERED_SECONDS)
        new = requests / (kept + requests)
        return ErrorRecord(self.bias + new * (bias - self.bias), kept + requests, self.seconds + seconds, now)

    def is_known(self, now: float) -> bool:
        """Whether enough requests were compared, and not too long ago."""
        is_enough = self.seconds >= LEAST_SECONDS and self.requests >= LEAST_REQUESTS
        return is_enough and now - self.judged_at <= REMEMBERED_SECONDS


@dataclass(frozen=True)
class Calibration:
    """The records of predictions for the replicas that served, by objective."""

    records: Mapping[Objective, ErrorRecord] = field(default_factory=dict)
    judged_at: float | None = None

    def find_error(self, objectives: Collection[Objective], now: float) -> float | None:
        """Return the error of the worst objective; None if that of one is unknown."""
        records = [self.records.get(objective, ErrorRecord()) for objective in objectives]
        if not all(record.is_known(now) for record in records):
            return None
        return max((abs(record.bias) for record in records), default=None)

    def is_due(self, now: float, window: float) -> bool:
        """Whether the present window does not overlap the one compared last."""
        return self.judged_at is None or now - self.judged_at >= window

    def judge(
        self, now: float, predicted: Mapping[Objective, float], latencies: Iterable[Latency], window: float
    ) -> "Calibration":
        """Return the calibration after comparing each objective's prediction with a window's measurement."""
        records = {objective: self.records.get(objective, ErrorRecord()) for objective in predicted}
        for latency in latencies:
            objective, bracket = latency.objective, latency.bracket
            if objective in predicted and bracket and latency.num_samples > 0:
                bias = _find_bias(predicted[objective], bracket)
                records[objective] = records[objective].add(now, bias, latency.num_samples, window)
        return Calibration(records, now)


def _find_bias(predicted: float, bracket: Bracket) -> float:
    """Return by how much a prediction is outside the range that the histogram is certain of."""
    return predicted - min(max(predicted, bracket.lower_share), bracket.upper_share)
