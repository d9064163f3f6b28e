"""Whole workloads with the default policy: how many requests are in time, and with how many replicas."""

import pytest

from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import draw_requests, fixed_lengths, step_rates
from millrace_operator.autoscaler.simulate.run import Ours, Run, Scaler, Setting, simulate
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

OBJECTIVES = (Objective("TimeToFirstToken", 99, 3.0), Objective("TimePerOutputToken", 99, 0.1))
LARGE = Hardware(
    overhead_seconds=0.004,
    weights_seconds=0.022,
    token_seconds=4e-5,
    context_seconds=3e-8,
    kv_tokens=400_000,
    cold_start_seconds=100.0,
)
"""Made up, for a model of 32 billion parameters on two devices."""
RATES, SECONDS = (2, 4, 6, 8, 10, 4, 1), (330, 360, 360, 360, 360, 360, 300)
"""The ramp of llm-d's guide to autoscaling by objectives: requests a second, and for how long."""


def ramp(scaler: Scaler, initial_replicas: int, seed: int) -> Run:
    load = draw_requests(step_rates(RATES, SECONDS), 10, sum(SECONDS), fixed_lengths(4000, 1000), seed)
    return simulate(
        Setting(LARGE, OBJECTIVES, initial_replicas=initial_replicas, seed=seed), scaler, load, sum(SECONDS)
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_ramp_of_long_prompts_is_served_in_time(seed: int) -> None:
    ours = ramp(Ours(Policy(3, 8, OBJECTIVES)), 3, seed)
    assert ours.attainment(OBJECTIVES) >= 0.99
    assert ours.average_replicas <= 5.9
    assert ours.count_reversals() <= 4
