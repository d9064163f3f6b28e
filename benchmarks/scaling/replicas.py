"""Replica-seconds from counts that were seen one after the other. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

ENDED = ("Succeeded", "Failed")


class Sample(NamedTuple):
    """How many pods there were at a time, in seconds since the load began."""

    at: float
    num_pods: int


def count_pods(pods: Iterable[Mapping[str, Any]]) -> int:
    """Return how many pods hold their CPU: from creation until gone, also while they start or drain."""
    return sum(pod.get("status", {}).get("phase") not in ENDED for pod in pods)


def replica_seconds(samples: Sequence[Sample], until: float) -> float:
    """Return the integral of the count from the load's begin `until` a time.

    A count holds until the next sample. The first one holds from the begin.
    """
    if not samples:
        return 0.0
    steps = [Sample(0.0, samples[0].num_pods), *samples[1:], Sample(until, 0)]
    return sum(
        one.num_pods * (min(other.at, until) - one.at) for one, other in pairwise(steps) if one.at < until
    )


def highest_count(samples: Iterable[Sample]) -> int:
    """Return the most pods that there were at a time."""
    return max((sample.num_pods for sample in samples), default=0)
