"""The result of one simulation: the row of the table, and the course over time. Pure."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace_kubectl.simulation.manifest import Manifest
from millrace_kubectl.simulation.policies import PolicyChoice
from millrace_kubectl.simulation.traffic import MINUTE, Traffic
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.simulate.engine import Answer
from millrace_operator.autoscaler.simulate.run import Run, is_within

HOUR = 3600.0
POINTS = 120
"""The points of a line over the whole time: more than a picture can show."""


class Point(NamedTuple):
    """A value at a time, and until the next point."""

    at: float
    value: float


@dataclass(frozen=True)
class Course:
    """One simulation over time."""

    replicas: list[Point]
    """Ready replicas, at every change."""
    latencies: list[list[Point]]
    """For each objective its percentile of the requests of each bin. Infinity: not answered."""
    pod_hours: list[Point]
    """Of all pods from the beginning."""


@dataclass(frozen=True)
class Measured:
    """The result of one policy."""

    choice: PolicyChoice
    attainment: float
    """The share of requests that met every target. Requests without an answer did not."""
    average_replicas: float
    """Pods, with those that start or drain."""
    replica_hours: float
    cost: float | None
    """None if the manifest names no price."""
    reversals: int
    """How often the count reversed within ten minutes."""
    missed_minutes: int
    """Minutes in which too few requests met an objective's target."""
    busy_minutes: int
    """Minutes with requests."""
    course: Course


def measure(choice: PolicyChoice, run: Run, traffic: Traffic, manifest: Manifest) -> Measured:
    """Return the figures of a run."""
    hours = run.pod_seconds / HOUR
    missed = _find_missed(run.answers, traffic, manifest.objectives)
    return Measured(
        choice=choice,
        attainment=run.attainment(manifest.objectives),
        average_replicas=run.average_replicas,
        replica_hours=hours,
        cost=manifest.price.per_replica_hour * hours if manifest.price else None,
        reversals=run.count_reversals(),
        missed_minutes=len(missed),
        busy_minutes=sum(count > 0 for count in traffic.count_by(MINUTE)),
        course=_follow(run, traffic, manifest.objectives),
    )


def find_width(seconds: float) -> float:
    """Return the length of a line's bin: whole minutes, for at most `POINTS` bins."""
    return MINUTE * math.ceil(seconds / POINTS / MINUTE)


def _find_missed(answers: Iterable[Answer], traffic: Traffic, objectives: Iterable[Objective]) -> set[int]:
    """Return the minutes in which an objective was missed."""
    answered, missed = list(answers), set[int]()
    for objective in objectives:
        met = [0] * (int(traffic.seconds / MINUTE) + 1)
        for answer in answered:
            met[int(answer.request.at / MINUTE)] += is_within(answer, objective)
        share = objective.percentile / 100
        missed |= {i for i, count in enumerate(traffic.count_by(MINUTE)) if met[i] < share * count}
    return missed


def _follow(run: Run, traffic: Traffic, objectives: Iterable[Objective]) -> Course:
    width = find_width(traffic.seconds)
    counts = [moment.num_ready for moment in run.moments] or [0]
    hours = [Point(moment.at, moment.pod_seconds / HOUR) for moment in run.moments]
    return Course(
        list(
            _list_changes(
                [
                    Point(0.0, counts[0]),
                    *(Point(moment.at, moment.num_ready) for moment in run.moments),
                    Point(run.seconds, counts[-1]),
                ]
            )
        ),
        [_bin_latencies(run.answers, traffic, objective, width) for objective in objectives],
        [Point(0.0, 0.0), *_thin(hours), Point(run.seconds, run.pod_seconds / HOUR)],
    )


def _list_changes(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the first point, those that differ from the one before, and the last."""
    for index, point in enumerate(points):
        if index in (0, len(points) - 1) or point.value != points[index - 1].value:
            yield point


def _thin(points: Sequence[Point]) -> list[Point]:
    return list(points[:: max(1, len(points) // POINTS)])


def _bin_latencies(
    answers: Iterable[Answer], traffic: Traffic, objective: Objective, width: float
) -> list[Point]:
    counts = list(traffic.count_by(width))
    found: list[list[float]] = [[] for _ in counts]
    for answer in answers:
        bin_ = int(answer.request.at / width)
        latency = answer.find_latency(objective.metric)
        if latency is None:
            counts[bin_] -= 1
        else:
            found[bin_].append(latency)
    return [
        Point((index + 0.5) * width, _find_percentile(found[index], count, objective.percentile))
        for index, count in enumerate(counts)
        if count
    ]


def _find_percentile(values: list[float], count: int, percentile: int) -> float:
    """Return the percentile by the nearest rank; requests without a value rank last."""
    rank = math.ceil(percentile / 100 * count)
    return sorted(values)[rank - 1] if rank <= len(values) else math.inf
