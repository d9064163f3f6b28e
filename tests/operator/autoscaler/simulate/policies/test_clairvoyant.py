"""The bound that knows the future: its plan takes the cheapest steps, and its replicas are there in time."""

from dataclasses import replace

import pytest

from millrace_operator.autoscaler.simulate.policies.clairvoyant import (
    Clairvoyant,
    Level,
    Table,
    find_lead,
    tabulate,
)
from millrace_operator.autoscaler.simulate.run import Static, simulate
from millrace_operator.autoscaler.simulate.workloads import Ramp, ramp
from tests.operator.autoscaler.made_signals import make_signals
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

TABLE = Table(
    60.0,
    200,
    (
        (Level(1, 90), Level(2, 99), Level(3, 100)),
        (Level(2, 10), Level(3, 10), Level(4, 100)),
    ),
)


@pytest.mark.parametrize(
    ("share", "counts"),
    [(0.4, (1, 2)), (0.9, (1, 4)), (0.99, (2, 4)), (0.999, (3, 4))],
)
def test_a_plan_takes_the_step_that_gains_most_also_over_one_that_gains_little(
    share: float, counts: tuple[int, ...]
) -> None:
    assert TABLE.plan(share) == counts


def test_a_plan_that_can_not_reach_its_share_takes_all_there_is() -> None:
    assert replace(TABLE, num_requests=1000).plan(0.99) == (3, 4)


def test_replicas_are_begun_a_cold_start_before_they_are_needed_and_go_when_they_are_not() -> None:
    scaler = Clairvoyant((1, 5, 2), 60.0, lead_seconds=30.0)
    times = (5.0, 20.0, 25.0, 60.0, 119.0, 125.0, 500.0)
    counts = [scaler.choose(make_signals(1, 1), now).replicas for now in times]
    assert counts == [1, 1, 5, 5, 5, 2, 2]


def test_a_planned_ramp_is_served_with_fewer_replicas_than_the_peak_needs_throughout() -> None:
    source = Ramp((2.0, 6.0, 2.0), (300.0, 300.0, 300.0), ramp().source.lengths)  # type: ignore[attr-defined]
    workload = replace(ramp(), source=source, seconds=900.0, min_replicas=1, initial_replicas=2)
    table = tabulate(workload, seed=1)
    counts = table.plan(0.995)
    setting = replace(workload.setting(seed=1, cold_start=30.0), initial_replicas=counts[0])
    scaler = Clairvoyant(counts, table.window_seconds, find_lead(workload, 30.0))
    run = simulate(setting, scaler, workload.requests(1), 900.0)
    assert run.attainment(workload.objectives) >= 0.99
    fixed = replace(setting, initial_replicas=max(counts) - 1)
    poor = simulate(fixed, Static(max(counts) - 1), workload.requests(1), 900.0)
    assert poor.attainment(workload.objectives) < 0.99
    assert run.average_replicas < 0.8 * max(counts)
