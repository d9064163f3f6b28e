"""One simulation: what it is made of, and what comes out."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from millrace_operator.autoscaler.simulate import workloads
from millrace_operator.autoscaler.simulate.policies.clairvoyant import foresee
from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS, PEERS, build_ours
from millrace_operator.autoscaler.simulate.prometheus import Scraping
from millrace_operator.autoscaler.simulate.run import Run
from millrace_operator.autoscaler.simulate.workloads import OUTAGE_SECONDS, TRACE_SECONDS, Workload

SHORT_SECONDS = 600.0
TUNED_SECONDS = 43_200.0
"""Of a day, from its night to its peak: a knob is chosen by half of it."""
REFILL_SECONDS = 120.0
"""Rates look a minute back, or four scrapes of 30 s."""
SEEDS = {"tune": 1, "report": 2}

Part = Literal["tune", "report"]
Fault = Literal["", "outage", "loss"]


@dataclass(frozen=True)
class Job:
    """What a simulation is made of."""

    workload: str
    policy: str
    knob: float = 0.0
    part: Part = "report"
    """Knobs are tuned on other requests than those that are reported."""
    cold_start: float | None = None
    """None: what the workload's replicas have."""
    scrape: float = 5.0
    fault: Fault = ""


class Result(NamedTuple):
    """What came out."""

    attainment: float
    average_replicas: float
    reversals: int
    num_unanswered: int
    """Taken by a replica, and ended without an answer."""
    num_refused: int
    """That came while no replica was ready."""
    num_downs_at_peak: int
    """Steps down in the ten minutes of a fault, and in the time after it in which windows refill."""
    seconds: float


@dataclass(frozen=True)
class Bench:
    """Where traces are, and whether workloads are cut short."""

    data: Path | None
    is_short: bool

    def find_workload(self, name: str, part: Part) -> Workload:
        """Return a workload. Of a trace the first half is for tuning, and the second is reported."""
        half = TRACE_SECONDS / 2
        begin, end = (0.0, half) if part == "tune" else (half, TRACE_SECONDS)
        drawn = {
            "W1": workloads.ramp,
            "W4": workloads.small_day,
            "W5": workloads.large_day,
            "W6": workloads.week,
        }
        if name in drawn:
            workload = drawn[name]()
        else:
            assert self.data is not None
            workload = (workloads.conversation if name == "W2" else workloads.code)(self.data, begin, end)
        if part == "tune" and workload.seconds > TUNED_SECONDS:
            workload = replace(workload, seconds=TUNED_SECONDS)
        if self.is_short:
            seconds = min(workload.seconds, SHORT_SECONDS)
            workload = replace(workload, seconds=seconds, peak_at=seconds / 2)
        return workload

    def run(self, job: Job) -> Result:
        """Simulate."""
        workload, seed = self.find_workload(job.workload, job.part), SEEDS[job.part]
        if job.policy == CLAIRVOYANT:
            return _measure(workload, foresee(workload, seed, job.cold_start))
        return _measure(workload, _simulate(workload, seed, job))


def _simulate(workload: Workload, seed: int, job: Job) -> Run:
    setting = workload.setting(seed, _find_scraping(workload, job), job.cold_start)
    if job.policy == OURS:
        return workload.play(setting, build_ours(workload))
    return PEERS[job.policy].play(workload, job.knob, setting)


def _find_scraping(workload: Workload, job: Job) -> Scraping:
    fault = workloads.list_faults(workload)[job.fault] if job.fault else Scraping()
    return replace(fault, interval_seconds=job.scrape)


def _measure(workload: Workload, run: Run) -> Result:
    begin = workload.peak_at - OUTAGE_SECONDS / 2
    end = begin + OUTAGE_SECONDS + REFILL_SECONDS
    return Result(
        run.attainment(workload.objectives),
        run.average_replicas,
        run.count_reversals(),
        run.num_arrived - run.num_refused - len(run.answers),
        run.num_refused,
        sum(
            other.choice.replicas < one.choice.replicas and begin <= other.at < end
            for one, other in pairwise(run.moments)
        ),
        run.seconds,
    )
