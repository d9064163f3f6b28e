"""Rules that follow latencies, caches or a model: sequences worked out by hand from each rule."""

from dataclasses import replace

import pytest

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Latency, Signals, StepMoments
from millrace_operator.autoscaler.signals.reading import EVERYTHING
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.policies.dynamo import DynamoLoad, DynamoThroughput
from millrace_operator.autoscaler.simulate.policies.hpa import Bounds
from millrace_operator.autoscaler.simulate.policies.llmd import Inferno, LlmD, Queue, Wva, watch
from tests.operator.autoscaler.made_signals import make_signals

BOUNDS = Bounds(1, 40)
FIRST, TOKEN = Objective("TimeToFirstToken", 95, 2.0), Objective("TimePerOutputToken", 95, 0.1)


def see_cache(usage: float, replicas: int, ready: int, waiting: float = 0.0) -> Signals:
    return make_signals(
        replicas, ready, ready, kv_usage=usage, kv_tokens=1000.0, waiting=waiting, prompt_tokens=100.0
    )


@pytest.mark.parametrize(
    ("signals", "wanted"),
    [
        (see_cache(0.6, 4, 4), 4),  # 2400 of 3200: more than 0.7 of three replicas, less than 0.85 of four
        (see_cache(0.75, 4, 4), 5),  # 3000 / 0.85 - 3200 = 329, of a replica's 800
        (see_cache(0.75, 5, 4), 5),  # the fifth is coming
        (see_cache(0.6, 4, 4, waiting=10.0), 5),  # 3400 / 0.85 - 3200 = 800: one
        (see_cache(0.4, 4, 4), 3),  # 3200 - 1600 / 0.7 = 914
        (see_cache(0.0, 4, 4), 1),
    ],
)
def test_wva_weighs_tokens_against_caches(signals: Signals, wanted: int) -> None:
    assert Wva(BOUNDS).choose(signals, 60.0).replicas == wanted


def test_wva_learns_what_a_cache_holds_when_requests_queue() -> None:
    scaler = Wva(BOUNDS)
    scaler.choose(see_cache(0.5, 2, 2, waiting=10.0), 60.0)  # 5 wait at each: a replica holds 500
    # 2000 / 0.85 - 4 · 500 = 353, of 500 each.
    assert scaler.choose(see_cache(0.5, 4, 4), 120.0).replicas == 5


def test_wva_holds_where_the_cache_is_unknown() -> None:
    assert Wva(BOUNDS).choose(make_signals(7, 0), 60.0).replicas == 7


def see_latencies(first: float, token: float, replicas: int, ready: int | None = None) -> Signals:
    watched = watch((FIRST, TOKEN))
    return make_signals(
        replicas,
        replicas if ready is None else ready,
        latencies=(Latency(watched[0], first, 100), Latency(watched[1], token, 100)),
    )


def test_llmd_watches_the_90th_percentile() -> None:
    assert [each.percentile for each in watch((FIRST, TOKEN))] == [90, 90]


def test_llmd_rises_above_its_upper_threshold_on_average_over_three_looks() -> None:
    scaler, counts, replicas = LlmD(BOUNDS), [], 4
    for tick, token in enumerate([0.05, 0.05, 0.08, 0.08, 0.08], 1):
        replicas = scaler.choose(see_latencies(0.2, token, replicas), 15.0 * tick).replicas
        counts.append(replicas)
    # 0.5, 0.5, 0.6: 4 · 0.6 / 0.55 = 4.4, so five are wanted, and six by 0.7. The least of 30 s is followed.
    assert counts == [4, 4, 4, 5, 6]


def test_llmd_counts_warming_replicas_as_serving_on_the_way_up_alone() -> None:
    def settle(token: float) -> int:
        scaler, signals = LlmD(BOUNDS), see_latencies(0.2, token, 8, ready=4)
        return min(scaler.choose(signals, 15.0 * tick).replicas for tick in range(1, 16))

    assert settle(0.09) == 8  # 0.9 of the targets on half of them
    assert settle(0.06) == 8  # 0.6 is above the threshold, so it is no room to give back
    assert settle(0.05) == 8
    assert settle(0.03) == 7  # 0.3 of the targets as measured: after three minutes


def test_llmd_takes_no_traffic_for_no_load_and_holds_where_the_query_failed() -> None:
    def settle(signals: Signals) -> int:
        scaler = LlmD(BOUNDS)
        return min(scaler.choose(signals, 15.0 * tick).replicas for tick in range(1, 16))

    assert settle(make_signals(8, 8, 8)) == 7  # after three minutes
    failed = make_signals(8, 8, rejected={EVERYTHING: "Prometheus did not answer"})
    assert settle(failed) == 8


def test_llmds_hpa_leaves_what_is_within_a_tenth() -> None:
    scaler = LlmD(BOUNDS)
    counts = [scaler.choose(see_latencies(0.2, 0.056, 20), 15.0 * tick).replicas for tick in range(1, 10)]
    assert counts[-1] == 20  # 20 · 0.56 / 0.55 = 20.4: one more is a twentieth


def test_llmd_goes_down_by_one_in_two_minutes() -> None:
    scaler, counts, replicas = LlmD(BOUNDS), [], 8
    for tick in range(1, 18):
        replicas = scaler.choose(see_latencies(0.2, 0.02, replicas), 15.0 * tick).replicas
        counts.append(replicas)
    # What it found counts as wanted for 180 s; then one goes, and the next after 120 s.
    assert counts == [8] * 12 + [7] * 5


MODEL = LatencyModel(coefficients=(0.02, 1e-4, 1e-7))


def test_infernos_latencies_at_no_load_are_those_of_one_request_alone() -> None:
    means = Queue(MODEL, 100.0, 50.0, 32).find_means(1e-9)
    step = 0.02
    assert means.output_token == pytest.approx(step + 1e-4 + 1e-7 * 125, rel=1e-4)
    assert means.first_token == pytest.approx(step + (1e-4 + 1e-7) * 100 + step + 1e-4 + 1e-7 * 125, rel=1e-4)


def test_infernos_queue_with_a_batch_of_one_is_the_textbooks() -> None:
    queue = Queue(MODEL, 100.0, 50.0, 1)
    service = 1 / queue.service_rate(1)
    rate, ratio, places = 0.8 / service, 0.8, 11
    chances = [ratio**count for count in range(places + 1)]
    total = sum(chances)
    waiting = sum((count - 1) * chance for count, chance in enumerate(chances) if count) / total
    wait = waiting / (rate * (1 - chances[-1] / total))
    busy = 1 - chances[0] / total
    expected = wait + queue.prefill_seconds(busy) + queue.token_seconds(busy)
    assert queue.find_means(rate).first_token == pytest.approx(expected)


def test_infernos_rate_is_where_a_mean_latency_meets_its_target() -> None:
    queue = Queue(MODEL, 1000.0, 100.0, 64)
    target = Objective("TimePerOutputToken", 95, 0.025)
    assert queue.find_means(queue.find_rate((target,))).output_token == pytest.approx(0.025, rel=1e-4)


def see_steps(rate: float, seconds: float = 0.0301, waiting: float = 0.0, replicas: int = 2) -> Signals:
    steps = tuple(
        StepMoments(f"pod-{index}", seconds, sequences, sequences, 100 * sequences, 500)
        for index, sequences in zip(range(replicas), (10.0, 20.0, 30.0), strict=False)
    )
    return make_signals(
        replicas,
        replicas,
        replicas,
        rate,
        recent_arrivals_per_second=rate,
        waiting=waiting,
        prompt_tokens=100.0,
        generation_tokens=100.0,
        kv_tokens=30_000.0,
        max_sequences=256.0,
        steps=steps,
    )


def test_inferno_holds_until_it_has_a_model_and_then_grows_with_the_load() -> None:
    scaler = Inferno(BOUNDS, (FIRST, TOKEN))
    counts = [scaler.choose(see_steps(1.0, replicas=3), 60.0 * tick).replicas for tick in range(1, 6)]
    assert counts[0] == 3
    assert counts[-1] == 1
    high, higher = (scaler.choose(see_steps(rate, replicas=3), 600.0).replicas for rate in (100.0, 200.0))
    assert higher == pytest.approx(2 * high, abs=1) != high


PROFILE = Hardware(
    overhead_seconds=0.0,
    weights_seconds=0.01,
    token_seconds=1e-3,
    context_seconds=0.0,
    max_sequences=256,
    kv_tokens=7500,
)


def test_dynamo_adds_what_prompts_and_tokens_need() -> None:
    # Prompts: 10/s · 100 tokens at 1000 a second = 1. Tokens: 10/s · 100 in batches of 7500 / 150 = 50, each
    # step 50 ms: 1000 a second = 1.
    scaler = DynamoThroughput(BOUNDS, (TOKEN,), PROFILE)
    signals = make_signals(5, 5, 5, 10.0, prompt_tokens=100.0, generation_tokens=100.0)
    assert scaler.choose(signals, 180.0) == (2, "1.00 for prompts and 1.00 for tokens")
    doubled = DynamoThroughput(BOUNDS, (TOKEN,), PROFILE, factor=2.0)
    signals = make_signals(5, 5, 5, 10.5, prompt_tokens=100.0, generation_tokens=100.0)
    assert doubled.choose(signals, 180.0).replicas == 5


def test_dynamo_plans_smaller_batches_where_steps_are_slower_than_the_profile() -> None:
    scaler = DynamoThroughput(BOUNDS, (Objective("TimePerOutputToken", 95, 0.04),), PROFILE)
    slow = StepMoments("pod-0", 0.08, 20.0, 20.0, 2000.0, 500)  # the profile says 0.02
    signals = make_signals(5, 5, 5, 10.0, prompt_tokens=100.0, generation_tokens=100.0, steps=(slow,))
    # The target becomes 10 ms: ten sequences, 1000 a second as before.
    assert scaler.choose(signals, 180.0).replicas == 2
    slower = StepMoments("pod-0", 0.16, 20.0, 20.0, 2000.0, 500)
    signals = make_signals(5, 5, 5, 10.0, prompt_tokens=100.0, generation_tokens=100.0, steps=(slower,))
    assert scaler.choose(signals, 180.0).replicas == 11  # none is in time: one sequence, 100 a second


def test_dynamo_holds_where_the_load_is_unknown() -> None:
    assert DynamoThroughput(BOUNDS, (TOKEN,), PROFILE).choose(make_signals(5, 5), 180.0).replicas == 5


def test_dynamos_load_mode_moves_by_one_where_all_replicas_agree() -> None:
    scaler = DynamoLoad(BOUNDS, (FIRST, TOKEN))
    assert scaler.choose(see_steps(1.0, 0.11), 5.0).replicas == 3
    assert scaler.choose(see_steps(1.0, 0.09), 10.0).replicas == 2
    assert DynamoLoad(BOUNDS, (FIRST, TOKEN), part=0.5).choose(see_steps(1.0, 0.06), 5.0).replicas == 3


def settle(waiting: float = 0.0, kv_tokens: float = 30_000.0, seconds: float = 0.02) -> int:
    """Return the count of the load mode once it knows three replicas, by the share of their batches."""
    scaler, count = DynamoLoad(BOUNDS, (FIRST, TOKEN)), 0
    for tick in range(1, 200):
        signals = see_steps(1.0, waiting=waiting, replicas=3)
        steps = tuple(
            replace(each, seconds=seconds + 5e-4 * each.tokens, context_tokens=2e3) for each in signals.steps
        )
        signals = replace(signals, steps=steps)
        count = scaler.choose(replace(signals, kv_tokens=kv_tokens), 5.0 * tick).replicas
    return count


def test_dynamos_load_mode_goes_down_where_the_others_can_take_over_what_one_has() -> None:
    assert settle() == 2
    assert settle(kv_tokens=3000.0) == 3  # half as many tokens again as the 2000 of each do not fit
    assert settle(seconds=0.06) == 3  # 60 ms and 45 sequences of half a one: longer than 80 ms
    # A prompt takes 50 ms. 25 of them wait at each: 1.3 s, and 1.9 s once a third replica's are theirs too.
    assert settle(waiting=75.0) == 3
    assert settle(waiting=15.0) == 2


def test_dynamos_load_mode_waits_for_replicas_that_start() -> None:
    signals = see_steps(1.0, 0.11)
    starting = make_signals(3, 2, 2, 1.0, steps=signals.steps)
    assert DynamoLoad(BOUNDS, (FIRST, TOKEN)).choose(starting, 5.0).replicas == 3


WHOLE, QUEUE = Objective("EndToEndLatency", 95, 1.0), Objective("QueueTime", 95, 0.001)


def test_peers_plan_by_the_targets_that_they_know() -> None:
    queue = Queue(LatencyModel(coefficients=(0.02, 1e-4, 1e-7)), 400.0, 100.0, 32)
    assert queue.find_rate((TOKEN, WHOLE, QUEUE)) == queue.find_rate((TOKEN,))
    assert queue.find_rate((WHOLE, QUEUE)) == queue.find_rate(())
    assert DynamoLoad(BOUNDS, (WHOLE, QUEUE)).choose(make_signals(7, 7), 60.0).replicas == 7
