import json
import random
from dataclasses import replace

import pytest

from millrace_operator.autoscale.decide import decide
from millrace_operator.autoscale.decision import Decision, Reason
from millrace_operator.autoscale.explain import explain
from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.memory import Memory
from millrace_operator.autoscale.observation import Latency, Signals, StepMoments
from millrace_operator.autoscale.policy import Objective, Policy, PolicyError

TTFT = Objective("TimeToFirstToken", 95, 1.0)
TPOT = Objective("TimePerOutputToken", 95, 0.1)
POLICY = Policy(1, 10, (TTFT,), max_sequences=16, scale_down_window_seconds=10, scale_down_interval_seconds=4)
CROWDED = replace(POLICY, objectives=(TPOT,))
FITTED = LatencyModel(num_samples=50, relative_error=0.02, coefficients=(0.02, 0.002, 2e-6))


def seen(replicas: int, rate: float | None, **other: object) -> Signals:
    known = Signals(
        replicas=replicas,
        ready_replicas=replicas,
        reporting_replicas=replicas,
        arrivals_per_second=rate,
        waiting=0.0,
        running=1.0,
        prompt_tokens=40,
        generation_tokens=40,
        pods=frozenset(f"pod-{i}" for i in range(replicas)),
    )
    return replace(known, **other)  # type: ignore[arg-type]


def remembered(desired: int, **other: object) -> Memory:
    return replace(Memory(desired=desired, model=FITTED, informed_since=-100.0), **other)  # type: ignore[arg-type]


def run(policy: Policy, signals: Signals, memory: Memory, ticks: int, start: float = 0.0) -> list[Decision]:
    decisions = []
    for tick in range(ticks):
        decision, memory = decide(policy, signals, memory, start + 2.0 * tick)
        decisions.append(decision)
        signals = replace(signals, replicas=decision.desired)
    return decisions


def test_load_beyond_one_replica_scales_up_and_says_why() -> None:
    decision, memory = decide(POLICY, seen(1, 8.0), remembered(1), 0.0)
    assert decision.desired == decision.candidates["forecast"] == 3
    assert (decision.reason, decision.binding) == (Reason.SCALING_UP, "forecast")
    assert "forecast asks for 3" in decision.message
    assert "8.00 requests/s" in decision.message
    assert memory.desired == 3


def test_a_queue_asks_for_replicas_to_work_it_off() -> None:
    decision, _ = decide(POLICY, seen(2, 4.0, waiting=100.0), remembered(2), 0.0)
    assert decision.binding == "queue"
    assert decision.desired > 2


def test_a_replicas_own_limits_bound_its_batch() -> None:
    """Without `maxSequences` in the spec the batch is what the replica says, and what its KV cache holds."""
    policy, planned = replace(POLICY, max_sequences=None, objectives=()), []
    for limits in (
        {},
        {"max_sequences": 8.0},
        {"kv_tokens": 282.0},
        {"max_sequences": 8.0, "kv_tokens": 1e6},
    ):
        signals = seen(1, 8.0, **limits)
        decision, memory = decide(policy, signals, remembered(1), 0.0)
        planned.append(decision.estimate.per_replica or 0.0)
        unseen = decide(policy, seen(1, 8.0), memory, 2.0)[0].estimate.per_replica
        assert unseen == planned[-1]
    endless, slots, cache, both = planned
    assert cache < slots == both < endless
    told = replace(policy, max_sequences=8)
    assert decide(told, seen(1, 8.0, max_sequences=8.0), remembered(1), 0.0)[0].estimate.per_replica == slots


def test_kv_pressure_asks_for_replicas() -> None:
    decision, _ = decide(POLICY, seen(4, 4.0, kv_usage=0.95), remembered(4), 0.0)
    assert decision.candidates["kvCache"] == 5
    assert decision.desired == 5


def test_one_step_up_is_at_most_double_or_four_more() -> None:
    policy = replace(POLICY, max_replicas=100)
    decisions = run(policy, seen(1, 1000.0), remembered(1), 3)
    assert [d.desired for d in decisions] == [5, 10, 20]
    assert decisions[0].binding == "scaleUpRate"


def test_bounds_hold() -> None:
    top, _ = decide(POLICY, seen(10, 1000.0), remembered(10), 0.0)
    assert (top.desired, top.reason, top.binding) == (10, Reason.AT_MAXIMUM, "maxReplicas")
    above, _ = decide(replace(POLICY, max_replicas=3), seen(5, 1.0), remembered(5), 0.0)
    assert above.desired == 3
    below, _ = decide(replace(POLICY, min_replicas=2), seen(1, 0.1), remembered(1), 0.0)
    assert below.desired == 2


def test_less_load_goes_down_one_at_a_time_after_the_window() -> None:
    decisions = run(POLICY, seen(4, 0.5), remembered(4, informed_since=None), 12)
    assert [d.desired for d in decisions] == [4, 4, 4, 4, 4, 3, 3, 2, 2, 1, 1, 1]
    assert decisions[0].reason == Reason.STABILISING
    assert decisions[0].binding == "scaleDownWindow"
    assert decisions[-1].reason == Reason.AT_MINIMUM


def test_ten_percent_of_a_large_fleet_go_at_once() -> None:
    policy = replace(POLICY, max_replicas=100)
    decision, _ = decide(policy, seen(50, 1.0), remembered(50), 0.0)
    assert decision.desired == 45


def test_a_step_down_that_would_be_tight_waits() -> None:
    per_replica = decide(POLICY, seen(1, 1.0), remembered(1), 0.0)[0].estimate.per_replica
    assert per_replica is not None
    tight, _ = decide(POLICY, seen(3, 1.95 * per_replica), remembered(3), 0.0)
    assert (tight.desired, tight.binding) == (3, "deadBand")
    loose, _ = decide(POLICY, seen(3, 1.5 * per_replica), remembered(3), 0.0)
    assert loose.desired == 2


@pytest.mark.parametrize("missing", ["arrivals_per_second", "waiting", "running"])
def test_a_missing_signal_holds(missing: str) -> None:
    signals = replace(seen(5, 0.1), **{missing: None})
    decisions = run(POLICY, signals, remembered(5), 20)
    assert {d.desired for d in decisions} == {5}
    assert {d.reason for d in decisions} == {Reason.SIGNALS_MISSING}
    assert all(d.is_held for d in decisions)


def test_all_signals_missing_holds_even_a_fresh_operator() -> None:
    lost = Signals(replicas=4, ready_replicas=4, rejected={"running": "Prometheus did not answer"})
    decision, memory = decide(POLICY, lost, Memory(), 0.0)
    assert (decision.desired, decision.is_held) == (4, True)
    assert "Prometheus did not answer" in decision.message
    assert memory.desired == 4


def test_what_an_idle_service_cannot_have_is_not_called_unknown() -> None:
    idle = replace(seen(1, 0.0), rejected={"step_seconds": "no samples", "prompt_tokens": "no samples"})
    assert "unknown" not in decide(POLICY, idle, remembered(1), 0.0)[0].message


def test_missing_arrivals_may_still_raise() -> None:
    decision, _ = decide(POLICY, seen(2, None, waiting=200.0), remembered(2), 0.0)
    assert decision.desired > 2


def test_after_an_outage_scale_down_waits_for_a_whole_window() -> None:
    memory, desired = remembered(4), []
    for tick in range(12):
        signals = seen(4, 0.1) if tick != 3 else Signals(4, 4)
        decision, memory = decide(
            replace(POLICY, scale_down_interval_seconds=100), signals, memory, 2.0 * tick
        )
        desired.append(decision.desired)
    assert desired[0] == 3
    assert desired[3:] == [3] * 9


def test_replicas_that_do_not_report_forbid_scale_down() -> None:
    decision, _ = decide(POLICY, seen(4, 0.1, reporting_replicas=3), remembered(4), 0.0)
    assert (decision.desired, decision.binding) == (4, "signals")


def test_pending_replicas_count() -> None:
    decisions = run(POLICY, seen(1, 8.0, ready_replicas=1), remembered(1), 5)
    assert [d.desired for d in decisions] == [3] * 5
    assert "2 not ready yet" in decisions[-1].message


def test_before_the_model_is_fitted_a_growing_queue_scales_up() -> None:
    decision, _ = decide(POLICY, seen(2, 5.0, waiting=10.0), Memory(desired=2), 0.0)
    assert (decision.desired, decision.binding) == (3, "feedback")


def test_before_the_model_is_fitted_a_missed_objective_scales_up() -> None:
    late = (Latency(TTFT, 3.0, 100),)
    decision, _ = decide(POLICY, seen(2, 5.0, waiting=1.0, latencies=late), Memory(desired=2), 0.0)
    assert decision.desired == 3
    assert "missed as measured: P95 TimeToFirstToken" in decision.message


def crowded(replicas: int) -> Signals:
    """Large batches that take four times as long as promised, and nobody waits."""
    slow = (Latency(TPOT, 0.4, 100),)
    return seen(replicas, 2.0, running=300.0, waiting=0.0, latencies=slow)


@pytest.mark.parametrize("model", [FITTED, LatencyModel()])
def test_no_replica_goes_while_an_objective_is_missed(model: LatencyModel) -> None:
    decisions = run(CROWDED, crowded(2), remembered(2, model=model), 60)
    assert min(d.desired for d in decisions) == 2
    if model is FITTED:
        assert decisions[0].binding == "objectives"
        assert "no lower while an objective is missed" in decisions[0].message
        assert "missed as measured: P95 TimePerOutputToken" in decisions[0].message


@pytest.mark.parametrize(("model", "added"), [(FITTED, 1), (LatencyModel(), 2)])
def test_an_objective_missed_without_a_queue_adds_replicas(model: LatencyModel, added: int) -> None:
    """One step for each window of the percentile: before, it speaks of the time before the last step."""
    decision, memory = decide(CROWDED, crowded(4), remembered(4, model=model), 0.0)
    decisions = [decision]
    for tick in range(1, 45):
        decision, memory = decide(CROWDED, crowded(decision.desired), memory, 2.0 * tick)
        decisions.append(decision)
    assert [d.desired for d in decisions] == [4] * 30 + [4 + added] * 15
    assert decisions[30].binding == "feedback"


def test_noise_at_the_edge_of_reach_moves_no_replicas() -> None:
    """From 38.2 to 38.8 ms of an empty step, P95 of 50 ms a token goes in and out of reach."""
    policy = replace(CROWDED, objectives=(replace(TPOT, target_seconds=0.05),), max_replicas=100)
    rng, counts, memory = random.Random(7), [], remembered(40)
    for tick in range(300):
        model = replace(FITTED, coefficients=(rng.uniform(0.0382, 0.0388), 2e-5, 2e-8))
        signals = seen(memory.desired or 0, 10.0, prompt_tokens=400, generation_tokens=100, running=40.0)
        decision, memory = decide(policy, signals, replace(memory, model=model), 2.0 * tick)
        counts.append(decision.desired)
    assert max(counts[20:]) - min(counts[20:]) <= 2
    assert {d for d in counts[20:] if d > 60} == set()


def test_an_objective_out_of_reach_keeps_nobody() -> None:
    policy = replace(CROWDED, objectives=(replace(TPOT, target_seconds=0.001),))
    late = (Latency(policy.objectives[0], 0.5, 1000),)
    assert decide(policy, seen(4, 0.5, latencies=late), remembered(4), 0.0)[0].desired == 3


def test_a_quantile_of_few_requests_says_nothing() -> None:
    late = (Latency(TTFT, 3.0, 10),)
    decision, _ = decide(POLICY, seen(2, 5.0, waiting=1.0, latencies=late), Memory(desired=2), 0.0)
    assert (decision.desired, decision.reason) == (2, Reason.LEARNING)


def test_feedback_waits_for_replicas_that_are_starting() -> None:
    signals = seen(2, 5.0, waiting=50.0, ready_replicas=1)
    assert decide(POLICY, signals, Memory(desired=2), 0.0)[0].desired == 2


def test_before_the_model_is_fitted_an_idle_service_goes_to_its_minimum() -> None:
    decisions = run(POLICY, seen(3, 0.0, running=0.0), Memory(desired=3), 20)
    assert decisions[-1].desired == 1


def test_an_objective_out_of_reach_is_reported_and_not_scaled_on() -> None:
    policy = replace(POLICY, objectives=(Objective("TimeToFirstToken", 95, 0.001),))
    late = (Latency(policy.objectives[0], 0.5, 1000),)
    decision, _ = decide(policy, seen(1, 0.5, latencies=late, waiting=1.0), remembered(1), 0.0)
    assert (decision.desired, decision.reason) == (1, Reason.SLO_INFEASIBLE)
    assert "cannot be met by an idle replica" in decision.message


def test_a_message_counts_replicas_and_says_why_there_is_no_model() -> None:
    said = decide(POLICY, seen(1, 1.0), Memory(desired=1), 0.0)[0].message
    assert said.startswith("Learning: 1 replica; learning asks for 1; ")
    assert "the latency model is not fitted yet (0 of 5 samples)" in said
    assert decide(POLICY, seen(2, 1.0), Memory(desired=2), 0.0)[0].message.startswith("Learning: 2 replicas;")
    poor = LatencyModel(num_samples=93, relative_error=0.52, coefficients=(0.02, 0.002, 2e-6))
    said = decide(POLICY, seen(1, 1.0), Memory(desired=1, model=poor), 0.0)[0].message
    assert "the latency model does not fit: it is 52 % off, and 35 % may be planned with" in said
    grown = decide(POLICY, seen(1, 8.0), remembered(1), 0.0)[0].message
    assert grown.startswith("ScalingUp: 1 -> 3 replicas; ")
    shrunk = decide(POLICY, seen(2, 0.1), remembered(2), 0.0)[0].message
    assert shrunk.startswith("ScalingDown: 2 -> 1 replica; ")


def test_steps_of_a_replica_that_warms_up_teach_nothing() -> None:
    steps = (StepMoments("pod-0", 0.5, 4, 4, 100, 50),)
    memory = Memory(desired=1)
    counts = []
    for tick in range(8):
        _, memory = decide(POLICY, seen(1, 1.0, steps=steps), memory, 2.0 * tick)
        counts.append(memory.model.num_samples)
    assert counts == [0, 0, 0, 0, 0, 1, 2, 3]


def test_looking_often_teaches_no_more_than_looking_once_a_window() -> None:
    def learn(tick_seconds: float) -> LatencyModel:
        memory = Memory(desired=1)
        for tick in range(round(400 / tick_seconds)):
            steps = (StepMoments("pod-0", 0.05, 4, 4, 100, 50),)
            _, memory = decide(POLICY, seen(1, 1.0, steps=steps), memory, tick_seconds * tick)
        return memory.model

    assert learn(2.0).gram[0][0] == pytest.approx(learn(20.0).gram[0][0], rel=0.1)


def test_the_forecast_looks_as_far_ahead_as_most_cold_starts_take() -> None:
    starts = {f"pod-{i}": 30.0 for i in range(18)} | {"pod-18": 300.0, "pod-19": 9999.0}
    _, memory = decide(POLICY, seen(1, 1.0, cold_starts=starts), Memory(desired=1), 0.0)
    assert memory.cold_start_seconds == 30.0
    _, memory = decide(POLICY, seen(1, 1.0, cold_starts={"a": 200.0, "b": 200.0}), memory, 2.0)
    assert memory.cold_start_seconds == 200.0
    _, memory = decide(POLICY, seen(1, 1.0, cold_starts={"a": 2000.0, "b": 2000.0}), memory, 4.0)
    assert memory.cold_start_seconds == 200.0
    _, memory = decide(POLICY, seen(1, 1.0), memory, 6.0)
    assert memory.cold_start_seconds == 200.0


def test_the_explanation_is_json_and_holds_the_figures() -> None:
    signals = seen(1, 8.0, latencies=(Latency(TTFT, 0.4, 100),))
    decision, memory = decide(POLICY, signals, remembered(1), 0.0)
    told = json.loads(json.dumps(explain(decision, signals, memory)))
    assert told["desired"] == 3
    assert told["model"]["alphaSeconds"] == 0.02
    assert told["estimate"]["capacity"]["limit"]
    assert told["signals"]["arrivalsPerSecond"] == 8.0


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda: Policy(0, 1), "min_replicas"),
        (lambda: Policy(3, 2), "write 3"),
        (lambda: Policy(1, 1, target_utilisation=0), "target_utilisation"),
        (lambda: Objective("TimeToFirstToken", 100, 1), "from 1 to 99"),
        (lambda: Objective("TimeToFirstToken", 95, 0), "more than 0"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(write: object, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        write()  # type: ignore[operator]
