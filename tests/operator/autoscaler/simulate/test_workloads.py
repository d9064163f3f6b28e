"""The compared workloads, and the default policy on one of them: how many requests are in time, with how many
replicas.
"""

import pickle
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import draw_requests, fixed_lengths, step_rates
from millrace_operator.autoscaler.simulate.policies.clairvoyant import BAR
from millrace_operator.autoscaler.simulate.run import Ours, Run, Scaler, Setting, Static, simulate
from millrace_operator.autoscaler.simulate.traces import AZURE_HEAD
from millrace_operator.autoscaler.simulate.workloads import (
    Outage,
    Workload,
    conversation,
    large_day,
    list_faults,
    ramp,
    small_day,
    week,
)
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

HALF_SECONDS = 1200.0
"""Of the time round a peak."""
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
DRAWN = [ramp(), small_day(), large_day(), week()]


@pytest.mark.parametrize("workload", DRAWN, ids=lambda workload: workload.name)
def test_a_seed_gives_the_same_requests_and_another_gives_others(workload: Workload) -> None:
    first, again, other = (list(islice(workload.requests(seed), 100)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_workload_reaches_another_process() -> None:
    for workload in DRAWN:
        assert pickle.loads(pickle.dumps(workload)) == workload
        pickle.dumps(list_faults(workload))


def test_the_ramp_comes_at_the_guides_rates() -> None:
    requests = list(ramp().requests(seed=1))
    for begin, end, rate in [(0, 330, 2), (330, 690, 4), (1410, 1770, 10), (2130, 2430, 1)]:
        found = sum(begin <= request.at < end for request in requests) / (end - begin)
        assert found == pytest.approx(rate, rel=0.15)


def test_a_recorded_workload_is_a_part_of_the_trace_with_ten_times_its_load(tmp_path: Path) -> None:
    lines = [f"2023-11-16 18:00:{second:02}.5,{100 + second},10" for second in range(60)]
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text("\n".join([AZURE_HEAD, *lines]))
    requests = list(conversation(tmp_path, 30.0, 60.0).requests(seed=1))
    assert {request.prompt_tokens for request in requests} == set(range(130, 160))
    assert sum(request.prompt_tokens == 130 for request in requests) == 10
    assert all(0 <= request.at < 30 for request in requests)


def test_prometheus_is_out_for_ten_minutes_around_the_peak() -> None:
    workload = small_day()
    is_down = list_faults(workload)["outage"].is_down
    assert isinstance(is_down, Outage)
    assert [is_down(workload.peak_at + at) for at in (-301, -300, 0, 299, 300)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert list_faults(workload)["loss"].lost_share == 0.5


@pytest.mark.parametrize("workload", DRAWN, ids=lambda workload: workload.name)
def test_an_idle_replica_is_in_time_with_the_longest_request(workload: Workload) -> None:
    """Otherwise some were late with any number of replicas, and 99 % no question of scaling."""
    longest = max(islice(workload.requests(seed=1), 20_000), key=lambda request: request.prompt_tokens)
    alone = [longest._replace(at=300.0 * turn) for turn in range(100)]
    setting = replace(workload.setting(seed=1), initial_replicas=1)
    assert simulate(setting, Static(1), alone, 30_000).attainment(workload.objectives) >= 0.99


def test_the_objectives_are_the_bar_by_which_autoscalers_are_compared() -> None:
    stated = {objective.percentile for workload in DRAWN for objective in workload.objectives}
    assert stated == {round(100 * BAR)}


@pytest.mark.slow
@pytest.mark.parametrize("workload", [small_day(), large_day()], ids=lambda workload: workload.name)
def test_a_days_peak_needs_about_ten_replicas(workload: Workload) -> None:
    noon = replace(workload, seconds=workload.peak_at + HALF_SECONDS)
    requests = [
        request._replace(at=request.at - noon.peak_at + HALF_SECONDS)
        for request in noon.requests(seed=1)
        if noon.peak_at - HALF_SECONDS <= request.at < noon.seconds
    ]

    def attainment(replicas: int) -> float:
        setting = replace(noon.setting(seed=1), initial_replicas=replicas)
        return simulate(setting, Static(replicas), requests, 2 * HALF_SECONDS).attainment(noon.objectives)

    assert attainment(6) < 0.9 < attainment(12)


def play_ramp(scaler: Scaler, initial_replicas: int, seed: int) -> Run:
    load = draw_requests(step_rates(RATES, SECONDS), 10, sum(SECONDS), fixed_lengths(4000, 1000), seed)
    return simulate(
        Setting(LARGE, OBJECTIVES, initial_replicas=initial_replicas, seed=seed), scaler, load, sum(SECONDS)
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_ramp_of_long_prompts_is_served_in_time(seed: int) -> None:
    ours = play_ramp(Ours(Policy(3, 8, OBJECTIVES)), 3, seed)
    assert ours.attainment(OBJECTIVES) >= 0.99
    assert ours.average_replicas <= 5.9
    assert ours.count_reversals() <= 4
