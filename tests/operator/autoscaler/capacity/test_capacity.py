import math
import random
from dataclasses import replace

import pytest

from millrace_operator.autoscaler.capacity.capacity import (
    Demand,
    find_capacity,
    find_count,
    find_infeasible,
)
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.capacity.pool import Pool
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.policy import LatencyMetric, Objective
from millrace_operator.autoscaler.signals.lengths import AnswerLengths
from millrace_runtime.contract import ANSWER_BUCKETS

MODEL = LatencyModel(coefficients=(0.02, 0.002, 2e-6))
REPLICA = Replica(MODEL, prompt_tokens=40, generation_tokens=40, context_tokens=60, max_sequences=16)
ENDLESS = replace(REPLICA, max_sequences=None)


def objective(target: float, metric: LatencyMetric = "TimeToFirstToken", percentile: int = 95) -> Objective:
    return Objective(metric, percentile, target)


def predict(target: Objective, rate: float, replicas: int = 1, replica: Replica = ENDLESS) -> float:
    return Pool(replica, replicas, rate * replicas).latency_seconds(target)


def carry(*objectives: Objective, replica: Replica = ENDLESS, replicas: int = 1) -> float:
    return find_capacity(replica, objectives, replicas).rate


@pytest.mark.parametrize("metric", ["TimeToFirstToken", "TimePerOutputToken", "EndToEndLatency", "QueueTime"])
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


def test_at_an_idle_replica_a_request_waits_for_a_part_of_one_step() -> None:
    """And its whole time is that, its prompt, and a step for each token of a long answer."""
    step = MODEL.predict(1, 60)
    for percentile in (50, 80, 99):
        waited = predict(objective(1, "QueueTime", percentile), 0.0)
        assert waited == pytest.approx(percentile / 100 * step)
        whole = predict(objective(1, "EndToEndLatency", percentile), 0.0)
        tokens = ENDLESS.longest_generation_tokens(percentile / 100)
        assert whole == pytest.approx(step / 2 + 40 * MODEL.beta + tokens * step)


def test_who_waits_longer_than_a_step_waits_for_a_prompt() -> None:
    """Of requests a second, 2 · E[max(S - w, 0)] find more than w of a prompt's work S: with equal prompts
    of 80 ms that is 2 · (80 ms - w), which is 5 % at 55 ms, and the step beside it. Two replicas are at
    their worst as bad as one; eight find a prompt at five moments of eight."""
    equal = replace(ENDLESS, prompt_spread=0.0)
    for replicas, met in ((1, 2.0), (2, 2.0), (8, 1.25)):
        pool = Pool(equal, replicas, 2.0 * replicas)
        waited = pool.find_latency("QueueTime", 0.95)
        assert waited == pytest.approx(pool.decode_seconds(0.5) + 0.08 - 0.05 / met)
        seldom = 1 - met * 0.08
        edge = pool.find_latency("QueueTime", seldom)
        assert edge == pytest.approx(pool.decode_seconds(0.5), rel=1e-4)
        assert pool.find_latency("QueueTime", seldom / 2) == pytest.approx(edge / 2, rel=1e-4)


def test_the_prompts_that_are_left_are_the_mean_of_those_that_are_longer() -> None:
    """By counting: lognormal lengths with a mean of 80 ms."""
    rng = random.Random(3)
    works = [rng.lognormvariate(math.log(0.08) - 0.5, 1.0) for _ in range(200_000)]
    for seconds in (0.01, 0.08, 0.2, 0.5):
        left = sum(max(work - seconds, 0.0) for work in works) / len(works)
        assert ENDLESS.find_prefill_left(left) == pytest.approx(seconds, rel=0.05)


def test_lengths_as_measured_count_and_not_those_that_are_taken_for_lognormal() -> None:
    """All answers have 40 tokens or less, and a tenth of them 64."""
    shares = tuple(1.0 if bound >= 64 else 0.9 if bound >= 32 else 0.0 for bound in ANSWER_BUCKETS)
    measured = replace(ENDLESS, answer_lengths=AnswerLengths(shares, 1000.0))
    longest = predict(objective(1, "EndToEndLatency", 99), 0.0, replica=measured)
    assert longest < 64 * MODEL.predict(1, 60) + 0.1
    assert longest < 0.5 * predict(objective(1, "EndToEndLatency", 99), 0.0)
    assert predict(objective(1), 3.0, replica=measured) == predict(objective(1), 3.0)


def test_long_answers_and_slow_steps_are_not_both_taken_at_their_worst() -> None:
    wanted, pool = objective(1, "EndToEndLatency"), Pool(ENDLESS, 1, 5.0)
    equal = replace(ENDLESS, generation_spread=0.0)
    both = ENDLESS.longest_generation_tokens(0.95) * pool.step_seconds(0.95)
    longest = ENDLESS.longest_generation_tokens(0.95) * pool.step_seconds(0.5)
    assert longest < predict(wanted, 5.0) < 0.95 * both
    slowest = 40 * Pool(equal, 1, 5.0).step_seconds(0.95)
    assert slowest < predict(wanted, 5.0, replica=equal) < 1.1 * slowest


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
    short = objective(0.01, "QueueTime")  # an idle replica's step takes 22 ms
    whole = objective(1.0, "EndToEndLatency")  # its longest answers of 40 on average take three seconds
    assert find_infeasible(REPLICA, (short, whole)) == ("P95 QueueTime",)  # lengths are not known yet
    long = AnswerLengths(tuple(float(bound >= 128) for bound in ANSWER_BUCKETS), 1000.0)
    measured = replace(REPLICA, answer_lengths=long)
    assert find_infeasible(measured, (short, whole)) == ("P95 QueueTime", "P95 EndToEndLatency")
    assert not find_infeasible(REPLICA, (objective(0.03, "QueueTime"), objective(4.0, "EndToEndLatency")))
