"""What a trial came to: requests in time, and the replica-seconds for it. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.scaling.replicas import Sample, highest_count, replica_seconds
from millrace_operator.api.scaling_types import Objective, ObjectiveMetric
from testing.traffic import Stream, ttft_percentile


class Target(NamedTuple):
    """An objective: the latency in seconds, and the share of requests that must keep it."""

    seconds: float
    share: float


class Targets(NamedTuple):
    """A service's two objectives."""

    first_token: Target
    output_token: Target


@dataclass(frozen=True)
class Outcome:
    """One trial's figures. Shares are of all requests; one without an answer is in time for nothing."""

    name: str
    keeps_objectives: bool
    ttft_share: float
    """Of requests within the target of the time to first token."""
    tpot_share: float
    """Of requests within the target of the time per output token."""
    in_time_share: float
    """Of requests within both."""
    ttft_p95_seconds: float
    replica_seconds: float
    highest_count: int
    num_requests: int
    num_refused: int
    num_broken: int
    """Begun, and lost or truncated."""


def read_targets(spec: Mapping[str, Any]) -> Targets:
    """Return the two objectives of an InferenceService's spec."""
    read = [Objective.model_validate(one) for one in spec["scaling"]["objectives"]]
    found = {one.metric: Target(one.target_seconds, one.percentile / 100) for one in read}
    return Targets(found[ObjectiveMetric.TIME_TO_FIRST_TOKEN], found[ObjectiveMetric.TIME_PER_OUTPUT_TOKEN])


def judge(
    name: str, streams: Sequence[Stream], samples: Sequence[Sample], seconds: float, targets: Targets
) -> Outcome:
    """Judge a trial whose load was sent for so many seconds."""
    ttft = share_of(streams, lambda one: is_first_token_in_time(one, targets))
    tpot = share_of(streams, lambda one: is_pace_in_time(one, targets))
    both = share_of(
        streams, lambda one: is_first_token_in_time(one, targets) and is_pace_in_time(one, targets)
    )
    return Outcome(
        name=name,
        keeps_objectives=ttft >= targets.first_token.share and tpot >= targets.output_token.share,
        ttft_share=ttft,
        tpot_share=tpot,
        in_time_share=both,
        ttft_p95_seconds=ttft_percentile(streams, 95, since=0.0, until=float("inf")),
        replica_seconds=replica_seconds(samples, seconds),
        highest_count=highest_count(samples),
        num_requests=len(streams),
        num_refused=sum(one.is_refused for one in streams),
        num_broken=sum(one.is_truncated for one in streams),
    )


def share_of(streams: Sequence[Stream], is_good: Callable[[Stream], bool]) -> float:
    """Return the share of streams that are good. Raises ValueError where there are none."""
    if not streams:
        raise ValueError("not one request was sent: make --seconds longer")
    return sum(map(is_good, streams)) / len(streams)


def is_first_token_in_time(stream: Stream, targets: Targets) -> bool:
    """Whether the first token came, and within its target."""
    seconds = stream.time_to_first_token
    return seconds is not None and seconds <= targets.first_token.seconds


def is_pace_in_time(stream: Stream, targets: Targets) -> bool:
    """Whether all tokens came, and their mean distance is within its target."""
    seconds = stream.time_per_output_token
    return not stream.is_truncated and seconds is not None and seconds <= targets.output_token.seconds


def choose_best(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the cheapest that keeps the objectives, or else the one with most requests in time."""
    good = [one for one in outcomes if one.keeps_objectives]
    if good:
        return min(good, key=lambda one: one.replica_seconds)
    return max(outcomes, key=lambda one: one.in_time_share)
