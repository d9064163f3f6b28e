"""An hour of a service whose only objective is on whole requests, or on the time in the queue.

Replicas' steps are noisy, uneven, stall, and are no straight line: nothing that the model knows.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.simulate import workloads
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import Lengths, Request, draw_requests
from millrace_operator.autoscaler.simulate.run import Run, Setting, Static, is_within, simulate
from tests.operator.autoscaler.hardware import SLOW
from tests.operator.autoscaler.predictions import Predicting, compare
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

SECONDS = 3600.0
HALF_AND_WHOLE = pytest.mark.parametrize(
    "seconds", [SECONDS / 2, pytest.param(SECONDS, marks=pytest.mark.long)], ids=["half", "whole"]
)


@dataclass(frozen=True)
class Hour:
    """A steady load on average, and the least fixed count that keeps the objective."""

    objective: Objective
    hardware: Hardware
    lengths: Lengths
    rate: float
    least: int

    def draw(self, seed: int) -> list[Request]:
        return [*draw_requests(lambda _: self.rate, self.rate, SECONDS, self.lengths, seed)]

    def setting(self, count: int, seed: int) -> Setting:
        return Setting(self.hardware, (self.objective,), initial_replicas=count, seed=seed)

    def attainment(self, run: Run) -> float:
        return run.attainment((self.objective,))


WHOLE = Hour(
    Objective("EndToEndLatency", 95, 5.0),
    replace(SLOW, cold_start_seconds=60.0),
    Lengths(math.log(40), 0.6, math.log(40), 0.6),
    20.0,
    8,
)
QUEUE = Hour(
    Objective("QueueTime", 95, 0.1),
    workloads.DAY_HARDWARE,
    Lengths(math.log(735), 0.8, math.log(545), 0.6, 12_000),
    6.0,
    12,
)
HOURS = [WHOLE, QUEUE]
NAMES = ["whole", "queue"]


@pytest.mark.parametrize("hour", HOURS, ids=NAMES)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@HALF_AND_WHOLE
def test_an_hour_is_kept_with_few_replicas_and_predictions_are_right(
    hour: Hour, seed: int, seconds: float
) -> None:
    scaler = Predicting(Policy(1, 40, (hour.objective,)))
    run = simulate(hour.setting(hour.least, seed), scaler, hour.draw(seed), seconds)
    assert hour.attainment(run) >= 0.95
    assert run.average_replicas <= 1.25 * hour.least
    found = compare(scaler, run, (hour.objective,))
    assert found.num_requests > run.num_arrived / 2
    assert found.predicted == pytest.approx(found.measured, abs=0.02)


@pytest.mark.long
@pytest.mark.parametrize("hour", HOURS, ids=NAMES)
def test_one_replica_less_than_the_least_fixed_count_misses(hour: Hour) -> None:
    """So the bar above is what it says."""
    requests = hour.draw(1)
    one, other = (
        hour.attainment(simulate(hour.setting(count, 1), Static(count), requests, SECONDS))
        for count in (hour.least - 1, hour.least)
    )
    assert one < 0.95 <= other


@HALF_AND_WHOLE
def test_answers_that_get_longer_get_replicas(seconds: float) -> None:
    """After half of the time a client asks for twice as many tokens."""
    half = seconds / 2
    short, long = (Lengths(math.log(40), 0.6, math.log(tokens), 0.6) for tokens in (30, 60))
    first = draw_requests(lambda _: 12.0, 12.0, half, short, 1)
    second = draw_requests(lambda _: 12.0, 12.0, half, long, 2)
    requests = [*first, *(each._replace(at=each.at + half) for each in second)]
    objective = Objective("EndToEndLatency", 95, 7.5)
    scaler = Predicting(Policy(1, 40, (objective,)))
    run = simulate(Setting(WHOLE.hardware, (objective,), initial_replicas=4), scaler, requests, seconds)
    counts = {moment.at: moment.choice.replicas for moment in run.moments}
    assert counts[half - 2.0] < counts[seconds - 2.0]
    last = [answer for answer in run.answers if answer.request.at > half + seconds / 6]
    assert sum(is_within(answer, objective) for answer in last) >= 0.95 * len(last)
    steps = [abs(one - other) for one, other in pairwise(counts.values())]
    assert sum(steps) < 20


def test_a_target_that_no_idle_replica_keeps_is_named_and_not_scaled_on() -> None:
    objective = replace(WHOLE.objective, target_seconds=1.5)
    scaler = Predicting(Policy(1, 40, (objective,)))
    requests = [each for each in WHOLE.draw(1) if each.at < 600]
    simulate(Setting(WHOLE.hardware, (objective,), initial_replicas=8), scaler, requests, 600.0)
    assert scaler.decision is not None
    assert scaler.decision.estimate.infeasible == ("P95 EndToEndLatency",)
    assert scaler.decision.desired <= 10
