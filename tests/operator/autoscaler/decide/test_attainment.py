"""Predictions for counts that are not there are right, or nobody sees them."""

from dataclasses import replace

import pytest

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.capacity.pool import Pool
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.attainment import (
    LARGEST_ERROR,
    Calibration,
    ErrorRecord,
    find_attainment,
    predict,
)
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Bracket, Latency
from millrace_operator.autoscaler.simulate import workloads
from millrace_operator.autoscaler.simulate.workloads import Workload
from tests.operator.autoscaler.predictions import Predicting, compare
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

TTFT = Objective("TimeToFirstToken", 95, 0.4)
TPOT = Objective("TimePerOutputToken", 95, 0.05)
REPLICA = Replica(LatencyModel(coefficients=(0.02, 0.002, 2e-6)), 40, 40, 60)
WINDOW = 60.0


def seen(objective: Objective, share: float, requests: float) -> Latency:
    return Latency(objective, 1.0, requests, Bracket(1.0, 1.0, share, share))


@pytest.mark.parametrize("objective", [TTFT, TPOT])
def test_the_part_in_time_is_where_the_latency_crosses_the_target(objective: Objective) -> None:
    pool = Pool(REPLICA, 3, 12.0)
    target = pool.find_latency(objective.metric, 0.935)
    assert find_attainment(pool, replace(objective, target_seconds=target)) == 0.93


def test_more_replicas_serve_more_in_time_and_too_few_serve_none() -> None:
    shares = [min(predict(REPLICA, (TTFT, TPOT), 20.0, count).values()) for count in range(1, 20)]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] >= 0.97


def test_what_finds_no_room_in_a_batch_is_not_in_time() -> None:
    pool = Pool(replace(REPLICA, max_sequences=12), 3, 12.0)
    assert pool.mean_sequences < 12 < pool.sequences(0.9)
    assert find_attainment(pool, replace(TTFT, target_seconds=60.0)) < 0.9


def judge(
    calibration: Calibration, predicted: float, came: float, requests: float, objective: Objective = TTFT
) -> Calibration:
    at = 0.0 if calibration.judged_at is None else calibration.judged_at + WINDOW
    return calibration.judge(at, {objective: predicted}, (seen(objective, came, requests),), WINDOW)


def error(calibration: Calibration, *objectives: Objective, after: float = 0.0) -> float | None:
    return calibration.find_error(objectives or (TTFT,), (calibration.judged_at or 0.0) + after)


def test_it_is_known_only_after_ten_minutes_and_300_requests() -> None:
    few, many = Calibration(), Calibration()
    for _ in range(9):
        few, many = judge(few, 0.97, 0.96, 20), judge(many, 0.97, 0.96, 100)
    assert error(many) is None
    few, many = judge(few, 0.97, 0.96, 20), judge(many, 0.97, 0.96, 100)
    assert error(few) is None
    assert error(many) == pytest.approx(0.01)


def test_wrong_predictions_are_not_shown_until_they_have_been_right_for_long() -> None:
    calibration = Calibration()
    for _ in range(30):
        calibration = judge(calibration, 0.99, 0.90, 100)
    assert error(calibration) == pytest.approx(0.09)
    passed = 0
    while (found := error(calibration)) is None or found > LARGEST_ERROR:
        assert (passed := passed + 1) < 100
        calibration = judge(calibration, 0.99, 0.99, 100)
    assert passed > 10


def test_what_was_compared_more_than_an_hour_ago_is_known_no_more() -> None:
    calibration = Calibration()
    for _ in range(30):
        calibration = judge(calibration, 0.97, 0.96, 100)
    assert error(calibration, after=3600.0) is not None
    assert error(calibration, after=3601.0) is None


def test_each_objective_has_a_record_of_its_own() -> None:
    """The comparison proves nothing about another objective, or the same with another target."""
    calibration, looser = Calibration(), replace(TTFT, target_seconds=2.0)
    for _ in range(30):
        calibration = judge(calibration, 0.97, 0.96, 100)
    predicted = {TTFT: 0.97, TPOT: 0.99}
    latencies = (seen(TTFT, 0.96, 100), seen(TPOT, 0.49, 100))
    now = (calibration.judged_at or 0.0) + WINDOW
    calibration = calibration.judge(now, predicted, latencies, WINDOW)
    assert error(calibration) == pytest.approx(0.01)
    assert error(calibration, TTFT, TPOT) is None
    assert error(calibration, looser) is None


def test_an_objective_that_is_not_measured_keeps_its_error_and_a_removed_one_is_forgotten() -> None:
    calibration = Calibration()
    for _ in range(30):
        calibration = judge(calibration, 0.99, 0.80, 100, TPOT)
    for tick in range(30):
        now = (calibration.judged_at or 0.0) + WINDOW * (tick > 0)
        calibration = calibration.judge(now, {TTFT: 0.97, TPOT: 0.99}, (seen(TTFT, 0.97, 100),), WINDOW)
    assert error(calibration, TTFT, TPOT) == pytest.approx(0.19)
    assert TPOT not in judge(calibration, 0.97, 0.97, 100).records


def test_inside_of_a_bucket_nothing_is_off() -> None:
    wide = Latency(TTFT, 1.0, 1000.0, Bracket(1.0, 2.0, 0.90, 0.99))
    judged = Calibration().judge(0.0, {TTFT: 0.93}, (wide,), WINDOW)
    assert judged.records[TTFT].bias == 0.0
    assert not judged.is_due(59.0, WINDOW)
    assert judged.is_due(60.0, WINDOW)


def test_a_window_without_requests_says_nothing() -> None:
    judged = Calibration().judge(0.0, {TTFT: 0.9}, (seen(TTFT, 1.0, 0.0),), WINDOW)
    assert judged.records == {TTFT: ErrorRecord()}


SMALL, LARGE = workloads.small_day(), workloads.large_day()
CASES = [*((SMALL, count) for count in (5, 6, 8, None)), *((LARGE, count) for count in (4, 6, None))]
"""With fixed counts, of which some are too few, and as we scale it."""
SILENT = (LARGE, 4)
"""There predictions are wrong, so nobody sees them."""
HOUR = 3600.0
LENGTHS = [
    *((*case, HOUR) for case in ((SMALL, 5), (SMALL, None), SILENT, (LARGE, None))),
    *(pytest.param(*case, 2 * HOUR, marks=pytest.mark.long) for case in CASES),
]


@pytest.mark.parametrize(("workload", "count", "seconds"), LENGTHS)
def test_predictions_are_right_within_two_points(
    workload: Workload, count: int | None, seconds: float
) -> None:
    bounds = (workload.min_replicas, workload.max_replicas) if count is None else (count, count)
    scaler = Predicting(Policy(*bounds, workload.objectives))
    setting = replace(workload.setting(7), initial_replicas=count or workload.initial_replicas)
    run = replace(workload, seconds=seconds).play(setting, scaler)
    if (workload, count) == SILENT:
        assert not scaler.predicted
        return
    found = compare(scaler, run, workload.objectives)
    assert found.predicted == pytest.approx(found.measured, abs=0.02)
