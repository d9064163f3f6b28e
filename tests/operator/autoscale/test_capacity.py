import pytest

from millrace_operator.autoscale.capacity import Replica, find_capacity
from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.policy import LatencyMetric, Objective

MODEL = LatencyModel(coefficients=(0.02, 0.002, 2e-6))
REPLICA = Replica(MODEL, prompt_tokens=40, generation_tokens=40, max_sequences=16)


def objective(target: float, metric: LatencyMetric = "TimeToFirstToken") -> Objective:
    return Objective(metric, 95, target)


def test_latency_grows_with_the_rate() -> None:
    rates = [0.1 * i * REPLICA.saturation_rate for i in range(10)]
    for metric in ("TimeToFirstToken", "TimePerOutputToken"):
        latencies = [REPLICA.latency_seconds(objective(1, metric), rate) for rate in rates]
        assert latencies == sorted(latencies)


def test_a_tighter_target_carries_less() -> None:
    rates = [find_capacity(REPLICA, (objective(target),)).rate for target in (0.2, 0.3, 1.0)]
    assert 0 < rates[0] < rates[1] < rates[2]


def test_names_the_objective_that_limits() -> None:
    tight = objective(0.05, "TimePerOutputToken")
    found = find_capacity(REPLICA, (objective(60), tight))
    assert found.limit == "P95 TimePerOutputToken"
    assert REPLICA.latency_seconds(tight, found.rate) == pytest.approx(0.05, rel=1e-3)


def test_without_objectives_saturation_limits() -> None:
    found = find_capacity(REPLICA, ())
    assert found.limit == "saturation"
    assert found.rate < REPLICA.saturation_rate


def test_fewer_slots_carry_less() -> None:
    few = Replica(MODEL, 40, 40, max_sequences=2)
    endless = Replica(MODEL, 40, 40)
    assert few.saturation_rate < REPLICA.saturation_rate < endless.saturation_rate


def test_at_saturation_every_slot_is_taken() -> None:
    rate = REPLICA.saturation_rate
    assert rate * 40 * REPLICA.step_seconds(rate) == pytest.approx(16, rel=1e-6)


def test_an_objective_beyond_an_idle_replica_is_named_and_left_out() -> None:
    found = find_capacity(REPLICA, (objective(0.001), objective(1.0, "TimePerOutputToken")))
    assert found.infeasible == ("P95 TimeToFirstToken",)
    assert found.rate > 0.5
