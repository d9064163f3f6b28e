import math
from dataclasses import replace

import pytest

from millrace_operator.autoscale.capacity import (
    Demand,
    find_capacity,
    find_count,
    find_infeasible,
)
from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.policy import LatencyMetric, Objective
from millrace_operator.autoscale.pool import Pool
from millrace_operator.autoscale.replica import Replica

MODEL = LatencyModel(coefficients=(0.02, 0.002, 2e-6))
REPLICA = Replica(MODEL, prompt_tokens=40, generation_tokens=40, context_tokens=60, max_sequences=16)
ENDLESS = replace(REPLICA, max_sequences=None)


def objective(target: float, metric: LatencyMetric = "TimeToFirstToken", percentile: int = 95) -> Objective:
    return Objective(metric, percentile, target)


def predict(target: Objective, rate: float, replicas: int = 1, replica: Replica = ENDLESS) -> float:
    return Pool(replica, replicas, rate * replicas).latency_seconds(target)


def carry(*objectives: Objective, replica: Replica = ENDLESS, replicas: int = 1) -> float:
    return find_capacity(replica, objectives, replicas).rate


@pytest.mark.parametrize("metric", ["TimeToFirstToken", "TimePerOutputToken"])
def test_latency_grows_with_the_rate_and_the_percentile(metric: LatencyMetric) -> None:
    most = 1 / ENDLESS.work_seconds
    for percentile in (50, 90, 95, 99):
        wanted = objective(1, metric, percentile)
        latencies = [predict(wanted, 0.1 * i * most) for i in range(1, 10)]
        assert latencies == sorted(latencies)
        assert percentile == 50 or predict(replace(wanted, percentile=80), 0.5 * most) < latencies[4]


def test_a_tighter_target_carries_less() -> None:
    rates = [carry(objective(target)) for target in (0.25, 0.4, 2.0)]
    assert 0 < rates[0] < rates[1] < rates[2]


def test_names_the_objective_that_limits() -> None:
    tight = objective(0.06, "TimePerOutputToken")
    found = find_capacity(ENDLESS, (objective(60), tight), 1)
    assert found.limit == "P95 TimePerOutputToken"
    assert predict(tight, found.rate) == pytest.approx(0.06, rel=1e-3)


def test_without_objectives_a_replica_is_not_planned_to_work_all_the_time() -> None:
    found = find_capacity(ENDLESS, (), 1)
    assert found.limit == "saturation"
    assert found.rate * ENDLESS.work_seconds == pytest.approx(0.95)


def test_slots_and_kv_cache_limit_what_a_replica_holds() -> None:
    few = find_capacity(replace(ENDLESS, max_sequences=8), (), 1)
    small = find_capacity(replace(ENDLESS, kv_tokens=480), (), 1)
    assert (few.limit, small.limit) == ("slots", "kvCache")
    assert few.rate == pytest.approx(small.rate)
    assert few.rate < carry()
    assert carry(replica=replace(ENDLESS, max_sequences=8, kv_tokens=300)) < small.rate


def test_more_replicas_carry_more_each_since_chance_evens_out() -> None:
    each = [carry(replica=REPLICA, replicas=count) for count in (1, 4, 16, 64)]
    assert each == sorted(each)
    mean_alone = REPLICA.count_sequences(each[0])
    assert mean_alone < 16 * 0.75
    assert 16 * 0.75 < REPLICA.count_sequences(each[3]) < 16


def test_counts_the_least_replicas_among_which_a_load_fits() -> None:
    objectives = (objective(1.0),)
    for rate in (0.1, 5.0, 12.0, 50.0):
        count = find_count(REPLICA, objectives, Demand(rate), 1000)
        assert Pool(REPLICA, count, rate).find_limit(objectives) is None
        assert count == 1 or Pool(REPLICA, count - 1, rate).find_limit(objectives) is not None
    assert find_count(REPLICA, objectives, Demand(1e6), 40) == 40


def test_each_kind_of_chance_at_its_worst_alone_is_borne_and_both_together_are_not_asked_for() -> None:
    objectives = (objective(1.0),)
    savings = []
    for expected in range(5, 100):
        demand = Demand(expected, 1.5 * math.sqrt(expected))
        count = find_count(REPLICA, objectives, demand, 1000)
        assert Pool(REPLICA, count, expected).find_limit(objectives) is None
        assert Pool(REPLICA, count, demand.planned, chance=0.0).find_limit(objectives) is None
        savings.append(find_count(REPLICA, objectives, Demand(demand.planned), 1000) - count)
    assert (min(savings), max(savings)) == (0, 1)
    assert 20 <= sum(savings) <= 75


def test_a_load_and_its_margin_grow_alike() -> None:
    assert Demand(4.0, 1.0).times(1.5) == Demand(6.0, 1.5)


@pytest.mark.parametrize(("beta", "slots"), [(1e-4, 16), (1e-5, 32), (1e-6, 16), (1e-7, 64), (0.0, 256)])
def test_a_capacity_is_exact_where_a_step_is_nearly_all_fixed_cost(beta: float, slots: int) -> None:
    """Work then allows thousands of times what the batch has room for."""
    replica = replace(REPLICA, model=LatencyModel(coefficients=(0.02, beta, 0.0)), max_sequences=slots)
    found = find_capacity(replica, (objective(60.0),), 3).rate
    assert Pool(replica, 3, 3 * 0.999 * found).find_limit((objective(60.0),)) is None
    assert Pool(replica, 3, 3 * 1.001 * found).find_limit((objective(60.0),)) is not None


def test_a_larger_margin_never_asks_for_fewer() -> None:
    objectives = (objective(1.0),)
    counts = [find_count(REPLICA, objectives, Demand(12.0, margin / 4), 1000) for margin in range(100)]
    assert counts == sorted(counts)


def test_prompts_of_many_lengths_are_late_more_often_than_equal_ones() -> None:
    wanted = objective(1.0, percentile=99)
    equal = replace(ENDLESS, prompt_spread=0.0, generation_spread=0.0)
    assert predict(wanted, 3.0, replica=equal) < 0.7 * predict(wanted, 3.0)
    assert equal.longest_prefill_seconds(0.99) == pytest.approx(equal.prefill_seconds)


def test_slower_steps_carry_less() -> None:
    assert carry(objective(1.0), replica=replace(ENDLESS, model=MODEL.slow(0.2))) < carry(objective(1.0))


def with_alpha(alpha: float, error: float = 0.0) -> Replica:
    """A replica whose time per token is within 50 ms alone up to an alpha of 50 ms."""
    model = LatencyModel(relative_error=error, coefficients=(alpha, 2e-5, 2e-8))
    return Replica(model, 400, 100, 450, max_sequences=16)


def test_a_replica_is_planned_for_one_sequence_at_least() -> None:
    """More replicas than sequences would shorten nothing."""
    tight = objective(0.05, "TimePerOutputToken")
    for alpha in (0.0485, 0.049, 0.0495, 0.051):
        found = find_capacity(with_alpha(alpha), (tight,), 1)
        assert found.limit == "P95 TimePerOutputToken"
        assert found.rate * 100 * with_alpha(alpha).model.predict(1, 450) >= 0.99
    loose = find_capacity(with_alpha(0.036), (tight,), 1)
    assert loose.limit == "slots"


def test_an_objective_is_out_of_reach_beyond_what_the_model_may_err() -> None:
    tight = objective(0.05, "TimePerOutputToken")
    assert not find_infeasible(with_alpha(0.052), (tight,))
    assert find_infeasible(with_alpha(0.053), (tight,)) == (tight.name,)
    assert not find_infeasible(with_alpha(0.053, error=0.2), (tight,))


def test_what_was_out_of_reach_stays_so_until_an_idle_replica_meets_it() -> None:
    tight = objective(0.05, "TimePerOutputToken")
    assert find_infeasible(with_alpha(0.051), (tight,), {tight.name})
    assert not find_infeasible(with_alpha(0.0495), (tight,), {tight.name})


def test_an_objective_beyond_an_idle_replica_is_named() -> None:
    objectives = (objective(0.001), objective(1.0, "TimePerOutputToken"))
    assert find_infeasible(REPLICA, objectives) == ("P95 TimeToFirstToken",)
