"""How many replicas keep every objective, and the load that one of them carries. Pure.

The number of requests to come is unknown. More may come than expected, and the batch of those that come may
be large. These two chances are independent, so they are seldom at their worst at once: their deviations add
up as squares. A count has to bear each of several equally bad cases (a first-order reliability method).
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from millrace_operator.autoscaler.capacity.pool import Pool
from millrace_operator.autoscaler.capacity.replica import LIMIT_SATURATION, NEARLY_ALL, Replica
from millrace_operator.autoscaler.decide.policy import Objective

LEAST_DOUBT = 0.05
"""Every model may err by at least this part about the latency of an idle replica."""
BISECTIONS = 12


@dataclass(frozen=True)
class Demand:
    """An expected load and a margin above it, in requests a second."""

    expected: float
    margin: float = 0.0
    """The percentile of the load to come, less the expected load."""

    @property
    def planned(self) -> float:
        """The largest load to plan for."""
        return self.expected + self.margin

    def times(self, factor: float) -> "Demand":
        """Return the load multiplied by a factor."""
        return Demand(factor * self.expected, factor * self.margin)


class Case(NamedTuple):
    """A bad case: the part of the margin that comes, and the part of a batch's deviations."""

    more: float
    chance: float


BAD_CASES = (Case(1.0, 0.0), Case(math.sqrt(0.5), math.sqrt(0.5)), Case(0.0, 1.0))
"""They are equally seldom. The worst of margin and batch at once took a tenth more replicas on two simulated
days (W4 and W5, eight hours, measured once by hand), and 99.7 % of the requests were in time with and without
it."""


@dataclass(frozen=True)
class Capacity:
    """The load that one of some replicas carries, and its limit."""

    rate: float
    """Requests per second of one replica."""
    limit: str


def find_infeasible(
    replica: Replica, objectives: Collection[Objective], known_infeasible: Collection[str] = ()
) -> tuple[str, ...]:
    """Name the objectives that an idle replica misses: more replicas would not help.

    The replica must miss it by more than the model may err. An objective that was out of reach stays so until
    an idle replica is in time.
    """
    return tuple(_list_infeasible(replica, objectives, known_infeasible))


def _list_infeasible(
    replica: Replica, objectives: Collection[Objective], known_infeasible: Collection[str]
) -> Iterator[str]:
    idle = Pool(replica, 1, 0.0)
    for objective in objectives:
        if objective.metric == "EndToEndLatency" and replica.answer_lengths is None:
            continue  # assumed lengths make no objective infeasible
        doubt = max(LEAST_DOUBT, replica.model.relative_error or 0.0)
        allowed = 1.0 if objective.name in known_infeasible else 1 + doubt
        if idle.latency_seconds(objective) > allowed * objective.target_seconds:
            yield objective.name


def relax_targets(replica: Replica, objectives: Collection[Objective]) -> list[Objective]:
    """Return the objectives to plan for. No target is closer to an idle replica's latency than LEAST_DOUBT.

    At a target that an idle replica just meets, each replica would have to compute one sequence alone. A step
    that is a hundredth shorter would then ask for ten times as many replicas.
    """
    idle = Pool(replica, 1, 0.0)
    least = {each: (1 + LEAST_DOUBT) * idle.latency_seconds(each) for each in objectives}
    return [replace(each, target_seconds=max(each.target_seconds, least[each])) for each in objectives]


def find_count(replica: Replica, objectives: Collection[Objective], demand: Demand, most: int) -> int:
    """Return the smallest number of replicas, up to `most`, that bear each of the bad cases of a load."""
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
    """Return the smallest count that fits, or `most`. The search begins at `least`, where it usually ends."""
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
    """Return the largest load that one of so many replicas carries, and the limit that it reaches first."""
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
