"""The ramp that every trial gets: rates as multiples of what one replica completes alone."""

import asyncio
import dataclasses
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.distinct import DistinctTarget
from benchmarks.scaling.cluster import NAMESPACE
from benchmarks.scaling.contestants import Size, shrink
from e2e.cluster.local_cluster import LocalCluster
from e2e.service import Service
from testing.traffic import Load, Phase, check_size


class Stage(NamedTuple):
    """A part of the time, in which the load goes evenly from one multiple to another."""

    begin: float
    end: float
    part: float


STAGES = (Stage(0.5, 0.5, 0.08), Stage(0.5, 3.0, 0.42), Stage(3.0, 3.0, 0.2), Stage(0.5, 0.5, 0.3))
"""It rises evenly: nobody who only measures can meet a sudden step in time. It falls at once."""
NUM_STEPS = 20
"""Rates in each stage."""
LEAD_SECONDS = 600.0
"""The lead ends much sooner: when the autoscaler is ready."""
BURST = Phase(0.5, 400.0)
"""200 requests almost at once. A small replica completes some 30 a second, so more are always waiting."""
NUM_BURSTS = 3
"""The median of them counts. A replica computes slowly at first."""
MAX_TOKENS = 32
PROMPT = "Once upon a time there was a little girl who loved to play in the garden. " * 6
"""Long enough that replicas compute more than it costs to carry the requests to them."""
_NUMBERS = itertools.count()
"""Of the requests of all loads."""


@dataclass(frozen=True)
class Ramp:
    """The load of all trials."""

    capacity: float
    """Requests a second that one replica completes alone."""
    seconds: float
    seed: int

    @property
    def phases(self) -> list[Phase]:
        """The stages' rates."""
        return [phase for stage in STAGES for phase in self._list_steps(stage)]

    @property
    def lead(self) -> list[Phase]:
        """What comes before, and is not judged: as much as in the first stage."""
        return [Phase(LEAD_SECONDS, STAGES[0].begin * self.capacity)]

    def _list_steps(self, stage: Stage) -> Iterator[Phase]:
        for step in range(NUM_STEPS):
            multiple = stage.begin + (stage.end - stage.begin) * (step + 0.5) / NUM_STEPS
            yield Phase(stage.part * self.seconds / NUM_STEPS, multiple * self.capacity)


def plan_ramp(cluster: LocalCluster, cpu: str, seconds: float, seed: int) -> Ramp:
    """Measure one replica alone, and plan the ramp by it. Raises ValueError where that is too much load."""
    ramp = Ramp(measure_one_replica(cluster, cpu), seconds, seed)
    check_size([*ramp.lead, *ramp.phases])
    return ramp


def measure_one_replica(cluster: LocalCluster, cpu: str) -> float:
    """Return the requests a second that a small replica completes when more are always waiting."""
    service = Service(cluster, NAMESPACE, "alone")
    shrink(service, Size(cpu, max_replicas=1))
    service.apply()
    service.wait_ready()
    try:
        return statistics.median(complete_burst(service) for _ in range(NUM_BURSTS))
    finally:
        service.delete()


def new_load(service: Service) -> Load:
    """Return a load for a service that has not begun. It has no prompt of an earlier load."""
    target = service.target(prompt=PROMPT, max_tokens=MAX_TOKENS)
    return Load(DistinctTarget(**dataclasses.asdict(target), numbers=_NUMBERS))


def complete_burst(service: Service) -> float:
    """Return the requests a second of a burst, from the first one's begin to the last one's end."""
    load = new_load(service)
    streams = asyncio.run(load.run([BURST]))
    ends = [one.ended for one in streams if one.ended is not None and not one.is_truncated]
    assert len(ends) == len(streams), "a stream was lost while one replica was measured"
    return len(ends) / (max(ends) - streams[0].sent)
