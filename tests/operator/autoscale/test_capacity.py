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


def with_alpha(alpha: float, error: float = 0.0) -> Replica:
    """A replica whose time per token is within 50 ms alone up to an alpha of 38.4 ms."""
    model = LatencyModel(relative_error=error, coefficients=(alpha, 2e-5, 2e-8))
    return Replica(model, prompt_tokens=400, generation_tokens=100, max_sequences=16)


def test_a_replica_is_planned_for_one_sequence_at_least() -> None:
    """More replicas than sequences would shorten nothing."""
    tight = objective(0.05, "TimePerOutputToken")
    for alpha in (0.0383, 0.03835, 0.0384, 0.0385):
        found = find_capacity(with_alpha(alpha), (tight,))
        assert found.limit == "P95 TimePerOutputToken"
        assert found.rate * 100 * with_alpha(alpha).step_seconds(0) >= 0.99
    loose = find_capacity(with_alpha(0.036), (tight,))
    assert loose.limit == "saturation"


def test_an_objective_is_out_of_reach_beyond_what_the_model_may_err() -> None:
    tight = objective(0.05, "TimePerOutputToken")
    assert not find_capacity(with_alpha(0.040), (tight,)).infeasible
    assert find_capacity(with_alpha(0.041), (tight,)).infeasible
    assert not find_capacity(with_alpha(0.041, error=0.2), (tight,)).infeasible


def test_what_was_out_of_reach_stays_so_until_an_idle_replica_meets_it() -> None:
    tight = objective(0.05, "TimePerOutputToken")
    assert find_capacity(with_alpha(0.039), (tight,), {tight.name}).infeasible
    assert not find_capacity(with_alpha(0.038), (tight,), {tight.name}).infeasible


def test_an_objective_beyond_an_idle_replica_is_named_and_left_out() -> None:
    found = find_capacity(REPLICA, (objective(0.001), objective(1.0, "TimePerOutputToken")))
    assert found.infeasible == ("P95 TimeToFirstToken",)
    assert found.rate > 0.5
