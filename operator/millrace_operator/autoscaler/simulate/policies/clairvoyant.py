"""A bound that knows the future: counts planned from the requests that will come, on the true replicas.

The time is cut into windows. For each window and each count of interest a simulation of that window alone,
with a lead before it, counts the requests that meet every objective. The plan begins with the smallest
counts. It adds the step with the most requests in time for one more replica, until the wanted share of all is
in time. Cold starts begin so early that hardly a replica is late. No autoscaler can know as much. The plan is
near the smallest one, but not proven to be it: a window ignores the unfinished requests of the one before.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.load import Request
from millrace_operator.autoscaler.simulate.policies.hpa import check_knob
from millrace_operator.autoscaler.simulate.run import Choice, Run, Static, is_within, simulate
from millrace_operator.autoscaler.simulate.workloads import Workload

SHARES = (0.8, 0.9, 0.96, 0.98, 0.985, 0.99, 0.992, 0.994, 0.996, 0.998, 0.9995)
"""The planned shares; the cheapest plan that reaches the bar counts."""
BAR = 0.99
"""The share of all requests that has to be in time."""
WINDOWS_OF_A_RUN = 40
LONGEST_WINDOW = 300.0
LEAD_WINDOWS = 2.0
LEAD_ANSWERS = 3.0
"""A window's simulation begins so many windows before it, or so many mean answers at their target's pace, so
that the window begins with busy replicas."""
GOOD = 0.999
POOR = 0.9
LATE_DEVIATIONS = 2.0
"""The plan allows a cold start so many deviations above its mean."""


class Level(NamedTuple):
    """The requests of a window that are in time with some replicas."""

    replicas: int
    num_in_time: int


@dataclass(frozen=True)
class Table:
    """The levels of each window."""

    window_seconds: float
    num_requests: int
    levels: tuple[tuple[Level, ...], ...]
    """By window, from few replicas to many."""

    def plan(self, share: float) -> tuple[int, ...]:
        """Return a count for each window, so that together the share of all requests is in time."""
        check_knob("share", share)
        chosen = [0] * len(self.levels)
        in_time = sum(levels[0].num_in_time for levels in self.levels)
        while in_time < share * self.num_requests:
            steps = [step for i in range(len(chosen)) if (step := self._find_step(i, chosen[i]))]
            if not steps:
                break
            best = max(steps, key=lambda step: step.gain / step.cost)
            chosen[best.window], in_time = best.level, in_time + best.gain
        return tuple(levels[index].replicas for levels, index in zip(self.levels, chosen, strict=True))

    def _find_step(self, window: int, index: int) -> "_Step | None":
        """Return the best step up of one window, over one or more levels."""
        levels = self.levels[window]
        here = levels[index]
        steps = [
            _Step(window, index + 1 + i, up.num_in_time - here.num_in_time, up.replicas - here.replicas)
            for i, up in enumerate(levels[index + 1 :])
        ]
        gains = [step for step in steps if step.gain > 0]
        return max(gains, key=lambda step: step.gain / step.cost, default=None)


class _Step(NamedTuple):
    window: int
    level: int
    gain: int
    cost: int


def tabulate(workload: Workload, seed: int) -> Table:
    """Return the levels of each window, from simulations with every count of interest."""
    requests = list(workload.requests(seed))
    seconds = min(LONGEST_WINDOW, workload.seconds / WINDOWS_OF_A_RUN)
    lead = max(LEAD_WINDOWS * seconds, LEAD_ANSWERS * _find_answer_seconds(workload, requests))
    rows: list[tuple[Level, ...]] = []
    start = workload.initial_replicas
    for number in range(math.ceil(workload.seconds / seconds)):
        window = _Window(
            workload=workload,
            requests=requests,
            begin=number * seconds,
            seconds=seconds,
            lead_seconds=lead,
            seed=seed,
        )
        rows.append(window.climb(start))
        start = rows[-1][len(rows[-1]) // 2].replicas
    return Table(seconds, len(requests), tuple(rows))


def _find_answer_seconds(workload: Workload, requests: Sequence[Request]) -> float:
    paces = [each.target_seconds for each in workload.objectives if each.metric == "TimePerOutputToken"]
    tokens = sum(request.generation_tokens for request in requests) / max(len(requests), 1)
    whole = [each.target_seconds for each in workload.objectives if each.metric == "EndToEndLatency"]
    return min([tokens * pace for pace in paces] + whole, default=0.0)


@dataclass(frozen=True)
class _Window:
    """One window with a lead before it."""

    workload: Workload
    requests: Sequence[Request]
    begin: float
    seconds: float
    lead_seconds: float
    seed: int

    def climb(self, start: int) -> tuple[Level, ...]:
        """Return the levels between poor and good, in a search from `start`."""
        low, high = self.workload.min_replicas, self.workload.max_replicas
        found = [self._try(min(max(start, low), high))]
        while found[0].replicas > low and found[0].num_in_time > POOR * self._num_requests:
            found.insert(0, self._try(found[0].replicas - 1))
        while found[-1].replicas < high and found[-1].num_in_time < GOOD * self._num_requests:
            found.append(self._try(found[-1].replicas + 1))
        return tuple(found)

    @property
    def _num_requests(self) -> int:
        def index(at: float) -> int:
            return bisect_left(self.requests, (at,))

        return index(self.begin + self.seconds) - index(self.begin)

    def _try(self, replicas: int) -> Level:
        first = max(self.begin - self.lead_seconds, 0.0)
        end = self.begin + self.seconds
        inside = self.requests[bisect_left(self.requests, (first,)) : bisect_left(self.requests, (end,))]
        shifted = [request._replace(at=request.at - first) for request in inside]
        setting = replace(self.workload.setting(self.seed), initial_replicas=replicas)
        run = simulate(setting, Static(replicas, tick_seconds=math.inf), shifted, end - first)
        objectives = self.workload.objectives
        return Level(
            replicas,
            sum(
                answer.request.at >= self.begin - first
                and all(is_within(answer, each) for each in objectives)
                for answer in run.answers
            ),
        )


@dataclass(frozen=True)
class Clairvoyant:
    """Follows a plan, a cold start ahead."""

    counts: tuple[int, ...]
    window_seconds: float
    lead_seconds: float
    tick_seconds: float = 5.0
    windows: Windows = DEFAULT_WINDOWS

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the largest need from now until a replica created now would serve."""
        del signals
        first = int(now / self.window_seconds)
        last = int((now + self.lead_seconds + self.tick_seconds) / self.window_seconds)
        needed = self.counts[first : last + 1] or self.counts[-1:]
        return Choice(max(needed), "planned")


def foresee(workload: Workload, seed: int, cold_start: float | None = None) -> Run:
    """Return the run of the cheapest plan that reaches the bar, or else of the last plan."""
    for run in foresee_shares(workload, seed, cold_start):
        if run.attainment(workload.objectives) >= BAR:
            break
    return run


def foresee_shares(workload: Workload, seed: int, cold_start: float | None = None) -> Iterator[Run]:
    """Yield the runs of the plans for each of `SHARES`, the cheapest first."""
    table, lead = tabulate(workload, seed), find_lead(workload, cold_start)
    for share in SHARES:
        counts = table.plan(share)
        setting = replace(workload.setting(seed, cold_start=cold_start), initial_replicas=counts[0])
        yield workload.play(setting, Clairvoyant(counts, table.window_seconds, lead))


def find_lead(workload: Workload, cold_start: float | None = None) -> float:
    """Return the seconds within which nearly every new replica is ready."""
    hardware = workload.setting(0, cold_start=cold_start).hardware
    return hardware.cold_start_seconds * math.exp(LATE_DEVIATIONS * hardware.cold_start_spread)
