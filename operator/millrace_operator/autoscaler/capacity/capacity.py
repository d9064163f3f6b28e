"""How many replicas keep every objective, and what one of them carries. Pure.

How many requests come is not known. That more come than expected, and that the batch of those that come is
large, are chance of two kinds that know nothing of each other, so both are seldom at their worst at once:
their deviations add up as squares. A count has to bear each of the cases that are as bad (a first-order
reliability method).
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from millrace_operator.autoscaler.capacity.replica import LIMIT_SATURATION, NEARLY_ALL, Pool, Replica
from millrace_operator.autoscaler.decide.policy import Objective

LEAST_DOUBT = 0.05
"""The part by which no model is taken to be sure of what an idle replica takes."""
BISECTIONS = 12


@dataclass(frozen=True)
class Demand:
    """A load as it is expected, and by how much more may come, in requests a second."""

    expected: float
    margin: float = 0.0
    """The percentile of what comes, over what is expected."""

    @property
    def planned(self) -> float:
        """The most that is to be expected."""
        return self.expected + self.margin

    def times(self, factor: float) -> "Demand":
        """Return so many times the load."""
        return Demand(factor * self.expected, factor * self.margin)


class Case(NamedTuple):
    """How bad it may be: the part of the margin that comes, and of a batch's deviations."""

    more: float
    chance: float


BAD_CASES = (Case(1.0, 0.0), Case(math.sqrt(0.5), math.sqrt(0.5)), Case(0.0, 1.0))
"""Equally seldom. Both at their worst at once took a tenth more replicas on two simulated days (W4 and W5,
eight hours, measured once by hand), and with either 99.7 % were in time."""


@dataclass(frozen=True)
class Capacity:
    """What one of so many replicas carries, and what limits it."""

    rate: float
    """Requests per second of one replica."""
    limit: str


def find_infeasible(
    replica: Replica, objectives: Collection[Objective], known_infeasible: Collection[str] = ()
) -> tuple[str, ...]:
    """Name the objectives that an idle replica misses: more replicas would not help.

    It must be missed by more than the model may err; what was out of reach stays so until an idle replica is
    in time.
    """
    return tuple(_list_infeasible(replica, objectives, known_infeasible))


def _list_infeasible(
    replica: Replica, objectives: Collection[Objective], known_infeasible: Collection[str]
) -> Iterator[str]:
    idle = Pool(replica, 1, 0.0)
    for objective in objectives:
        if objective.metric == "EndToEndLatency" and replica.answer_lengths is None:
            continue  # lengths that are only taken to be so call nothing impossible
        doubt = max(LEAST_DOUBT, replica.model.relative_error or 0.0)
        allowed = 1.0 if objective.name in known_infeasible else 1 + doubt
        if idle.latency_seconds(objective) > allowed * objective.target_seconds:
            yield objective.name


def ease(replica: Replica, objectives: Collection[Objective]) -> list[Objective]:
    """Return the objectives as they are planned for: no target is nearer to an idle replica than it is known.

    At a target that an idle replica just meets, each replica would have to compute one sequence alone. Ten
    times as many replicas would then rest on a step that is a hundredth shorter.
    """
    idle = Pool(replica, 1, 0.0)
    least = {each: (1 + LEAST_DOUBT) * idle.latency_seconds(each) for each in objectives}
    return [replace(each, target_seconds=max(each.target_seconds, least[each])) for each in objectives]


def find_count(replica: Replica, objectives: Collection[Objective], demand: Demand, most: int) -> int:
    """Return the least number of replicas, up to `most`, that bear each of the bad cases of a load."""
    count = min(max(math.ceil(demand.expected * replica.work_seconds / NEARLY_ALL), 1), most)
    for case in BAD_CASES:
        rate = demand.expected + case.more * demand.margin
        fits = partial(_fits, replica, objectives, rate, case.chance)
        count = _find_least(count, most, fits)
    return count


def _fits(
    replica: Replica, objectives: Collection[Objective], rate: float, chance: float, replicas: int
) -> bool:
    return Pool(replica, replicas, rate, chance).find_limit(objectives) is None


def _find_least(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the least count that fits, or `most`. It is looked for near the least that it may be."""
    low, step = least, 1
    while low < most and not fits(min(low + step - 1, most)):
        low, step = min(low + step, most), 2 * step
    high = min(low + step - 1, most)
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def find_capacity(replica: Replica, objectives: Collection[Objective], replicas: int) -> Capacity:
    """Return what one of so many replicas carries at most, and what would be the first to give."""
    low, high = 0.0, replica.highest_rate
    limit = LIMIT_SATURATION
    if (found := Pool(replica, replicas, high * replicas).find_limit(objectives)) is not None:
        limit = found
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if (found := Pool(replica, replicas, middle * replicas).find_limit(objectives)) is None:
                low = middle
            else:
                high, limit = middle, found
        high = low
    return Capacity(max(high, min(replica.lone_rate, replica.highest_rate)), limit)
