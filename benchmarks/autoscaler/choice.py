"""Which knob stands for a peer: the cheapest that is good everywhere, or good on one workload."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from benchmarks.autoscaler.jobs import Job, Result
from millrace_operator.autoscaler.simulate.policies.clairvoyant import BAR

JUDGED = ("W1", "W2", "W4", "W5")
"""On these one setting has to do. W3's bursts are beyond what anybody can follow, and W6 is W4 again."""
WEEK = "W6"
"""It takes as long as all others of a policy, so ours and a fixed count alone are run on it."""


class Knob(NamedTuple):
    """A peer's value, and whether it reaches the bar with it."""

    value: float
    is_good: bool


def choose_knob(found: Mapping[float, Collection[Result]]) -> Knob:
    """Return the cheapest value that reaches the bar on all workloads, or else the one that comes nearest."""
    good = {value: average(each) for value, each in found.items() if attain(each) >= BAR}
    if good:
        return Knob(min(good, key=good.__getitem__), is_good=True)
    return Knob(max(found, key=lambda value: attain(found[value])), is_good=False)


def attain(results: Collection[Result]) -> float:
    """Return the share of requests in time on the worst workload."""
    return min(result.attainment for result in results)


def average(results: Collection[Result]) -> float:
    """Return the replicas on average, with each workload weighing alike."""
    return sum(result.average_replicas for result in results) / len(results)


def list_tried(
    tuning: Mapping[Job, Result], policy: str, names: Collection[str]
) -> dict[float, list[Result]]:
    """Return what each value of a peer gave that was tried on all of these workloads."""
    values = {job.knob for job in tuning if job.policy == policy}
    jobs = {value: [Job(name, policy, value, "tune") for name in names] for value in values}
    return {
        value: [tuning[job] for job in tried]
        for value, tried in jobs.items()
        if tried and all(job in tuning for job in tried)
    }


def list_tuning(values: Mapping[str, Sequence[float]], names: Collection[str]) -> list[Job]:
    """Return the jobs of all sweeps."""
    return [
        Job(name, policy, value, "tune")
        for policy, some in values.items()
        for value in some
        for name in JUDGED
        if name in names
    ]
