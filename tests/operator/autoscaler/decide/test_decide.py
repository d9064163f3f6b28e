import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision, Reason
from millrace_operator.autoscaler.decide.evidence import render_decision
from millrace_operator.autoscaler.decide.forecast import ForecastError, Outlook
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy, PolicyError
from millrace_operator.autoscaler.decide.situation import (
    FIRST_SCRAPE_SECONDS,
    FLAPS_REMEMBERED,
    Estimate,
    Situation,
)
from millrace_operator.autoscaler.signals.observation import Bracket, Fleet, Latency, Signals, StepMoments
from millrace_operator.autoscaler.signals.reading import EVERYTHING, NO_SERIES
from millrace_operator.autoscaler.signals.scrapes import fit_windows

TTFT = Objective("TimeToFirstToken", 95, 1.0)
TPOT = Objective("TimePerOutputToken", 95, 0.1)
POLICY = Policy(1, 10, (TTFT,), max_sequences=16, scale_down_window_seconds=10, scale_down_interval_seconds=4)
"""The window is longer: as long as rates look back, and two seconds."""
CROWDED = replace(POLICY, objectives=(TPOT,))
CALM = Outlook(error=ForecastError(quantile=0.5))
"""A service whose load has surprised little."""
FITTED = LatencyModel(num_samples=50.0, relative_error=0.02, coefficients=(0.02, 0.002, 2e-6))


def fleet(replicas: int, ready: int | None = None, cold_starts: dict[str, float] | None = None) -> Fleet:
    pods = [f"pod-{i}" for i in range(replicas)]
    return Fleet(dict.fromkeys(pods, "one"), frozenset(pods[:ready]), cold_starts or {}, desired=replicas)


def seen(replicas: int, rate: float | None, **other: object) -> Signals:
    ready = fleet(replicas)
    known = Signals(
        ready,
        reporting=ready.ready,
        arrivals_per_second=rate,
        waiting=0.0,
        running=1.0,
        prompt_tokens=40,
        generation_tokens=40,
    )
    return replace(known, **other)  # type: ignore[arg-type]


def remembered(**other: object) -> Memory:
    return replace(Memory(model=FITTED, informed_since=-100.0, outlook=CALM), **other)  # type: ignore[arg-type]


def run(policy: Policy, signals: Signals, memory: Memory, ticks: int, start: float = 0.0) -> list[Decision]:
    decisions = []
    for tick in range(ticks):
        decision, memory = decide(policy, signals, memory, start + 2.0 * tick)
        decisions.append(decision)
        signals = replace(signals, fleet=replace(signals.fleet, desired=decision.desired))
    return decisions


def test_load_beyond_one_replica_scales_up_and_says_why() -> None:
    decision, _ = decide(POLICY, seen(1, 8.0), remembered(), 0.0)
    assert decision.desired == decision.candidates["forecast"] == 3
    assert (decision.reason, decision.binding) == (Reason.SCALING_UP, "forecast")
    assert "forecast asks for 3" in decision.message
    assert "8.00 requests/s" in decision.message


@pytest.mark.parametrize("why", [NO_SERIES, "connection refused"])
def test_no_signal_is_missing_before_a_replica_was_ready(why: str) -> None:
    signals = Signals(fleet(2, ready=0), rejected={EVERYTHING: why})
    assert {one.reason for one in run(POLICY, signals, Memory(), 100)} == {Reason.STARTING}


def test_a_ready_replica_has_time_for_its_first_scrape_while_prometheus_answers() -> None:
    num_young = int(FIRST_SCRAPE_SECONDS / 2)
    decisions = run(POLICY, Signals(fleet(1), rejected={EVERYTHING: NO_SERIES}), Memory(), num_young + 5)
    expected = [Reason.STARTING] * num_young + [Reason.SIGNALS_MISSING] * 5
    assert [one.reason for one in decisions] == expected
    refused = Signals(fleet(1), rejected={EVERYTHING: "connection refused"})
    assert run(POLICY, refused, Memory(), 1)[0].reason is Reason.SIGNALS_MISSING


def test_a_queue_asks_for_replicas_to_work_it_off() -> None:
    decision, _ = decide(POLICY, seen(2, 4.0, waiting=100.0), remembered(in_flight=2.0), 0.0)
    assert decision.binding == "queue"
    assert decision.desired > 2


@pytest.mark.parametrize("policy", [POLICY, CROWDED])
@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_what_is_in_flight_counts_though_nobody_saw_it_arrive(policy: Policy, rate: float) -> None:
    """Traffic past a gateway, or answers that have become very long: 80 run, and six replicas do."""
    signals = seen(6, rate, running=80.0, waiting=0.0, kv_usage=0.9, kv_tokens=10_000.0, max_sequences=16.0)
    decisions = run(policy, signals, remembered(), 300)
    assert min(decision.desired for decision in decisions) >= 5
    assert decisions[-1].candidates["inFlight"] >= 5 > decisions[-1].candidates["forecast"]


def test_what_is_in_flight_by_chance_adds_nothing() -> None:
    """Thirty more for a moment, beside what such a load has anyway."""
    usual = seen(6, 20.0, running=25.0, waiting=0.0)
    memory = remembered()
    for tick in range(120):
        signals = replace(usual, running=55.0) if tick % 30 == 29 else usual
        decision, memory = decide(POLICY, signals, memory, 2.0 * tick)
        assert decision.candidates["inFlight"] <= decision.candidates["forecast"]


def test_of_a_silent_replica_what_is_in_flight_is_not_taken_for_gone() -> None:
    signals = seen(6, 0.2, running=80.0, waiting=0.0, max_sequences=16.0)
    memory = remembered()
    for tick in range(60):
        _, memory = decide(POLICY, signals, memory, 2.0 * tick)
    half = replace(signals, reporting=frozenset({"pod-0"}), running=1.0)
    for tick in range(60, 200):
        decision, memory = decide(POLICY, half, memory, 2.0 * tick)
    assert memory.in_flight == pytest.approx(80.0, rel=0.01)
    assert decision.desired >= 6


def rate_of(decision: Decision) -> float:
    assert decision.estimate.capacity is not None
    return decision.estimate.capacity.rate


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
        decision, memory = decide(policy, signals, remembered(), 0.0)
        planned.append(rate_of(decision))
        assert rate_of(decide(policy, seen(1, 8.0), memory, 2.0)[0]) == planned[-1]
    endless, slots, cache, both = planned
    assert cache < slots == both < endless
    capped = replace(policy, max_sequences=8)
    assert rate_of(decide(capped, seen(1, 8.0, max_sequences=8.0), remembered(), 0.0)[0]) == slots


def test_before_the_model_is_fitted_kv_pressure_asks_for_replicas() -> None:
    decision, _ = decide(POLICY, seen(4, 4.0, kv_usage=0.95), Memory(), 0.0)
    assert decision.candidates["kvCache"] == 5
    assert decision.desired == 5


def test_one_step_up_is_at_most_double_or_four_more() -> None:
    policy = replace(POLICY, max_replicas=100)
    decisions = run(policy, seen(1, 1000.0), remembered(), 3)
    assert [d.desired for d in decisions] == [5, 10, 20]
    assert decisions[0].binding == "scaleUpRate"


def test_bounds_hold() -> None:
    top, _ = decide(POLICY, seen(10, 1000.0), remembered(), 0.0)
    assert (top.desired, top.reason, top.binding) == (10, Reason.AT_MAXIMUM, "maxReplicas")
    above, _ = decide(replace(POLICY, max_replicas=3), seen(5, 1.0), remembered(), 0.0)
    assert above.desired == 3
    below, _ = decide(replace(POLICY, min_replicas=2), seen(1, 0.1), remembered(), 0.0)
    assert below.desired == 2


def test_less_load_goes_down_one_at_a_time_after_the_window() -> None:
    decisions = run(POLICY, seen(4, 0.5), remembered(informed_since=None), 40)
    assert [d.desired for d in decisions] == [4] * 31 + [3] * 3 + [2] * 3 + [1] * 3
    assert decisions[0].reason == Reason.STABILISING
    assert decisions[0].binding == "scaleDownWindow"
    assert decisions[-1].reason == Reason.AT_MINIMUM


def test_ten_percent_of_a_large_fleet_go_at_once() -> None:
    policy = replace(POLICY, max_replicas=100)
    decision, _ = decide(policy, seen(50, 1.0), remembered(), 0.0)
    assert decision.desired == 45


def test_a_step_down_that_would_be_tight_waits() -> None:
    """Two replicas would do for all of these loads, but for the last not for a fifth more."""
    found = [decide(POLICY, seen(3, rate), remembered(), 0.0)[0] for rate in (1.0, 3.7, 4.3)]
    assert [decision.candidates["forecast"] for decision in found] == [1, 2, 2]
    assert [(decision.desired, decision.binding) for decision in found] == [
        (2, "scaleDownRate"),
        (2, "forecast"),
        (3, "deadBand"),
    ]


@pytest.mark.parametrize(
    ("rate", "desired", "binding"), [(200.0, 81, "scaleDownRate"), (210.0, 85, "deadBand")]
)
def test_a_large_fleet_goes_down_as_far_as_surely_suffices(rate: float, desired: int, binding: str) -> None:
    """It kept all where a whole step down would have been tight, though most of it was not."""
    decision, _ = decide(replace(POLICY, max_replicas=200), seen(90, rate), remembered(), 0.0)
    assert (decision.desired, decision.binding) == (desired, binding)


def swing(policy: Policy, rates: Sequence[float], seconds: float, memory: Memory) -> Memory:
    """Let each rate last for so many seconds, and follow every decision at once."""
    count, now = 3, 0.0
    for rate in rates:
        for _ in range(int(seconds / policy.tick_seconds)):
            decision, memory = decide(policy, seen(count, rate), memory, now)
            count, now = decision.desired, now + policy.tick_seconds
    return memory


def test_a_load_that_comes_and_goes_is_waited_for_longer() -> None:
    """Every five minutes; a count that fell is soon raised again."""
    policy = replace(POLICY, scale_down_window_seconds=180.0)
    restless = swing(policy, (1.0, 8.0) * 3, 300.0, remembered(informed_since=-1000.0))
    assert len(restless.flaps) == 2  # the third time it did not fall
    calm = swing(policy, (1.0, 8.0), 300.0, remembered(informed_since=-1000.0))
    assert len(calm.flaps) == 1
    later = 6 * 300.0 + FLAPS_REMEMBERED
    _, rested = decide(policy, seen(3, 8.0), replace(restless, lowered_at=None), later)
    assert rested.flaps == ()


def raise_after(fell_at: float, now: float, flaps: tuple[float, ...] = ()) -> tuple[float, ...]:
    memory = remembered(fell_at=fell_at, lowered_at=fell_at, flaps=flaps)
    decision, after = decide(POLICY, seen(2, 20.0), memory, now)
    assert decision.desired > 2
    return after.flaps


def test_a_fall_was_too_early_if_the_count_is_raised_within_ten_minutes_and_only_once() -> None:
    assert raise_after(1000.0, 1600.0) == (1600.0,)
    assert raise_after(1000.0, 1601.0) == ()
    assert raise_after(1000.0, 1300.0, flaps=(1200.0,)) == (1200.0,)
    assert raise_after(1250.0, 1300.0, flaps=(1200.0,)) == (1200.0, 1300.0)


def test_what_a_person_lowers_and_raises_again_is_no_restless_load() -> None:
    """`maxReplicas` goes from 10 to 3 and back, twice, under a steady load; and a pin asks for 2."""
    memory, count, now = remembered(), 6, 0.0
    for most, pinned in [(10, None), (3, None), (10, None), (3, None), (10, None), (10, 2), (10, None)]:
        for _ in range(20):
            count = pinned or count
            decision, memory = decide(replace(POLICY, max_replicas=most), seen(count, 20.0), memory, now)
            count, now = decision.desired, now + 2.0
    assert memory.flaps == ()


def test_two_falls_that_were_too_early_make_the_window_three_times_as_long() -> None:
    policy = replace(POLICY, scale_down_window_seconds=100.0)
    fallen = {}
    for flaps in ((), (-20.0,), (-20.0, -10.0)):
        memory, now = remembered(informed_since=-1000.0, flaps=flaps), 0.0
        _, memory = decide(policy, seen(3, 8.0), memory, now)
        while (decision := decide(policy, seen(3, 1.0), memory, now))[0].desired == 3:
            memory, now = decision[1], now + 2.0
        fallen[len(flaps)] = now
    assert fallen[0] == fallen[1]
    assert fallen[2] == pytest.approx(fallen[0] + 200.0, abs=4.0)


def test_of_what_was_recommended_only_what_may_still_count_is_kept() -> None:
    memory = remembered(informed_since=-1000.0)
    for tick, rate in enumerate([8.0, 20.0, 9.0, 7.0, 8.0, 1.0] * 3):
        _, memory = decide(replace(POLICY, scale_down_window_seconds=600), seen(9, rate), memory, 2.0 * tick)
        counts = [past.replicas for past in memory.recommendations]
        assert counts == sorted(set(counts), reverse=True)
    assert len(memory.recommendations) <= 3


def test_a_queue_is_worked_off_while_as_many_come_as_are_expected() -> None:
    """It was reckoned with the load of the last half a minute, which a sudden rise is slow to show in."""
    before = replace(CALM, load=4.0, average=4.0, stay_seconds=60.0, seen_at=-2.0)
    signals = seen(2, 4.0, recent_arrivals_per_second=20.0, waiting=120.0)
    decision, _ = decide(POLICY, signals, remembered(outlook=before), 0.0)
    assert decision.estimate.rate == pytest.approx(4.5, abs=0.5)
    assert decision.estimate.demand is not None
    assert decision.estimate.demand.expected > 8.0
    assert decision.candidates["queue"] > decision.candidates["forecast"]


@pytest.mark.parametrize("missing", ["arrivals_per_second", "waiting", "running"])
def test_a_missing_signal_holds(missing: str) -> None:
    signals = replace(seen(5, 0.1), **{missing: None})
    decisions = run(POLICY, signals, remembered(), 20)
    assert {d.desired for d in decisions} == {5}
    assert {d.reason for d in decisions} == {Reason.SIGNALS_MISSING}
    assert all(d.is_held for d in decisions)


def test_all_signals_missing_holds_even_a_fresh_operator() -> None:
    lost = Signals(fleet(4), rejected={"running": "Prometheus did not answer"})
    decision, _ = decide(POLICY, lost, Memory(), 0.0)
    assert (decision.desired, decision.is_held) == (4, True)
    assert "Prometheus did not answer" in decision.message


def test_what_an_idle_service_cannot_have_is_not_called_unknown() -> None:
    idle = replace(seen(1, 0.0), rejected={"step_seconds": "no samples", "prompt_tokens": "no samples"})
    assert "unknown" not in decide(POLICY, idle, remembered(), 0.0)[0].message


def test_missing_arrivals_may_still_raise() -> None:
    decision, _ = decide(POLICY, seen(2, None, waiting=200.0), remembered(), 0.0)
    assert decision.desired > 2


def test_after_an_outage_scale_down_waits_for_a_whole_window() -> None:
    memory, desired = remembered(), [4]
    for tick in range(12):
        signals = seen(desired[-1], 0.1) if tick != 3 else Signals(fleet(desired[-1]))
        decision, memory = decide(
            replace(POLICY, scale_down_interval_seconds=100), signals, memory, 2.0 * tick
        )
        desired.append(decision.desired)
    assert desired == [4] + [3] * 12


def test_replicas_that_do_not_report_forbid_scale_down() -> None:
    decision, _ = decide(POLICY, seen(4, 0.1, reporting=fleet(3).ready), remembered(), 0.0)
    assert (decision.desired, decision.binding) == (4, "signals")


def test_pending_replicas_count() -> None:
    decisions = run(POLICY, seen(1, 8.0), remembered(), 5)
    assert [d.desired for d in decisions] == [3] * 5
    assert "2 not ready yet" in decisions[-1].message


def test_before_the_model_is_fitted_a_growing_queue_scales_up() -> None:
    _, memory = decide(POLICY, seen(2, 5.0, waiting=3.0), Memory(), 0.0)
    decision, _ = decide(POLICY, seen(2, 5.0, waiting=10.0), memory, 2.0)
    assert (decision.desired, decision.binding) == (3, "feedback")


def test_a_queue_does_not_grow_because_another_replica_reports_its_own() -> None:
    part = seen(2, 5.0, waiting=3.0, reporting=fleet(1).ready)
    _, memory = decide(POLICY, part, Memory(), 0.0)
    assert decide(POLICY, seen(2, 5.0, waiting=10.0), memory, 2.0)[0].desired == 2


def test_before_the_model_is_fitted_a_missed_objective_scales_up() -> None:
    late = (Latency(TTFT, 3.0, 100),)
    decision, _ = decide(POLICY, seen(2, 5.0, waiting=1.0, latencies=late), Memory(), 0.0)
    assert decision.desired == 3
    assert "missed as measured: P95 TimeToFirstToken" in decision.message


def crowded(replicas: int) -> Signals:
    """Large batches that take four times as long as promised, and nobody waits."""
    slow = (Latency(TPOT, 0.4, 100, Bracket(0.1, 0.15, 0.1, 0.6)),)
    return seen(replicas, 2.0, running=6.0, waiting=0.0, latencies=slow)


@pytest.mark.parametrize("model", [FITTED, LatencyModel()])
def test_no_replica_goes_while_an_objective_is_missed(model: LatencyModel) -> None:
    decisions = run(CROWDED, crowded(2), remembered(model=model), 60)
    assert min(d.desired for d in decisions) == 2
    if model is FITTED:
        assert decisions[0].binding == "objectives"
        assert "no lower while an objective is missed" in decisions[0].message
        assert "missed as measured: P95 TimePerOutputToken" in decisions[0].message


@pytest.mark.parametrize(("seconds", "least"), [(0.14, 8), (0.12, 2)])
def test_no_replica_goes_while_an_objective_may_be_missed(seconds: float, least: int) -> None:
    """The target is between two bounds, and so is the percentile: where it is likely to be, decides."""
    policy = replace(POLICY, objectives=(Objective("TimePerOutputToken", 95, 0.13),))
    unsure = Latency(policy.objectives[0], seconds, 1000, Bracket(0.1, 0.15, 0.5, 0.99))
    assert not unsure.is_known
    decisions = run(policy, seen(8, 2.0, latencies=(unsure,)), remembered(), 300)
    assert decisions[-1].desired == least
    assert ("objective is missed, or likely to be" in decisions[-1].message) is (least == 8)


@pytest.mark.parametrize(("model", "added"), [(FITTED, 1), (LatencyModel(), 2)])
def test_an_objective_missed_without_a_queue_adds_replicas(model: LatencyModel, added: int) -> None:
    """One step for each window of the percentile: before, it speaks of the time before the last step.

    A part of the error budget is spent first, here at eight times the allowed speed. An answer takes a
    second.
    """
    decision, memory = decide(CROWDED, crowded(4), remembered(model=model), 0.0)
    decisions = [decision]
    for tick in range(1, 75):
        decision, memory = decide(CROWDED, crowded(decision.desired), memory, 2.0 * tick)
        decisions.append(decision)
    raised = [d.desired for d in decisions].index(4 + added)
    assert raised == (39 if model.is_fitted else 38)
    assert decisions[raised].binding == "feedback"
    assert {d.desired for d in decisions[raised : raised + 30]} == {4 + added}


def test_noise_at_the_edge_of_reach_moves_no_replicas() -> None:
    """With an empty step of 49.97 ms an idle replica just meets a P95 of 50 ms a token."""
    policy = replace(CROWDED, objectives=(replace(TPOT, target_seconds=0.05),), max_replicas=100)
    rng, counts, wanted, memory = random.Random(7), [10], [], remembered()
    for tick in range(600):
        model = replace(FITTED, coefficients=(rng.uniform(0.049, 0.051), 2e-5, 2e-8))
        signals = seen(counts[-1], 10.0, prompt_tokens=400, generation_tokens=100, running=40.0)
        decision, memory = decide(policy, signals, replace(memory, model=model), 2.0 * tick)
        counts.append(decision.desired)
        wanted.append(decision.candidates["forecast"])
    assert max(wanted) - min(wanted) <= 1
    assert max(counts[100:]) - min(counts[100:]) <= 1


def test_no_cliff_stands_where_an_objective_gets_out_of_reach() -> None:
    policy = replace(CROWDED, objectives=(replace(TPOT, target_seconds=0.05),), max_replicas=100)
    wanted, memory = [], remembered()
    for alpha in range(400, 560):
        model = replace(FITTED, coefficients=(alpha / 10_000, 2e-5, 2e-8))
        signals = seen(10, 10.0, prompt_tokens=400, generation_tokens=100, running=40.0)
        decision, memory = decide(policy, signals, replace(memory, model=model), 0.0)
        if decision.estimate.infeasible:
            break
        wanted.append(decision.candidates["forecast"])
    assert max(abs(one - other) for one, other in pairwise(wanted)) == 1
    assert (wanted[0], max(wanted)) == (4, 7)
    assert 522 <= alpha <= 528


@pytest.mark.parametrize("others", [(), (Objective("TimeToFirstToken", 95, 0.001),)])
def test_replicas_are_added_while_they_help_whatever_is_out_of_reach_beside(
    others: tuple[Objective, ...],
) -> None:
    """Each replica more leaves 72 % of what is late; the objective that no replica keeps stays missed."""
    policy = replace(CROWDED, objectives=(TPOT, *others), max_replicas=40)
    never = tuple(Latency(other, 0.5, 1000, Bracket(0.0, 0.001, 0.0, 0.0)) for other in others)
    counts, memory = [4], remembered()
    for tick in range(900):
        late = 0.3 * 0.72 ** (counts[-1] - 4)
        latencies = (Latency(TPOT, 0.4, 1000, Bracket(0.1, 0.1, 1 - late, 1 - late)), *never)
        signals = seen(counts[-1], 2.0, running=6.0, latencies=latencies)
        decision, memory = decide(policy, signals, memory, 2.0 * tick)
        counts.append(decision.desired)
    assert decision.estimate.infeasible == tuple(other.name for other in others)
    assert max(counts) == 10


@pytest.mark.parametrize("interval", [None, 2.0, 5.0, 30.0])
def test_a_replica_teaches_once_a_scrape_and_the_same_however_often_it_is_scraped(
    interval: float | None,
) -> None:
    """Six minutes of looks every two seconds. A window and the warm-up pass before the first."""
    memory, taught = remembered(model=LatencyModel()), 0
    policy = replace(POLICY, windows=fit_windows(interval))
    for tick in range(180):
        now = 2.0 * tick
        at = {} if interval is None else {"pod-0": 9e8 + interval * (now // interval)}
        steps = (StepMoments("pod-0", 0.05, 4, 4, 100, 50),)
        before = memory.model.num_samples
        _, memory = decide(policy, seen(1, 1.0, steps=steps, sampled_at=at), memory, now)
        taught += memory.model.num_samples > before
    learned_seconds = 360.0 - policy.warm_up_seconds - policy.windows.recent
    assert taught == pytest.approx(learned_seconds / max(interval or 0.0, 2.0), abs=1.0)
    assert memory.model.num_samples == pytest.approx(1 + learned_seconds / policy.windows.recent, abs=0.6)


def test_a_container_that_begins_anew_teaches_nothing_while_it_warms_up() -> None:
    """In the same pod: not Ready for half a minute, and then three times as slow for as long."""
    memory, learned = remembered(model=LatencyModel()), []
    for tick in range(300):
        is_warming, ready = 215 <= tick < 230, 0 if 200 <= tick < 215 else 1
        steps = (StepMoments("pod-0", 0.15 if is_warming else 0.05, 4, 4, 100, 50),) if ready else ()
        signals = seen(1, 1.0, steps=steps, fleet=fleet(1, ready))
        _, memory = decide(POLICY, signals, memory, 2.0 * tick)
        learned.append(memory.model.num_samples)
    assert learned[200] == learned[234] < learned[-1]
    assert memory.model.predict(4, 100) == pytest.approx(0.05, rel=0.05)


def test_a_container_that_begins_anew_starts_and_is_not_stuck() -> None:
    """It takes as long as a cold start at most, and nothing is added meanwhile."""
    memory = remembered(settled_since=-9e3, cold_starts=(120.0,) * 5, spent={TTFT.name: 200.0})
    pods = fleet(3)
    memory = replace(memory, ready_since=dict.fromkeys(pods.ready, -9e3), started=pods.ready)
    late = (Latency(TTFT, 3.0, 300, Bracket(1.0, 1.0, 0.5, 0.5)),)
    for tick in range(60):
        signals = seen(3, 2.0, latencies=late, waiting=2.0, fleet=fleet(3, ready=2), running=20.0)
        decision, memory = decide(POLICY, signals, memory, 2.0 * tick)
        assert "feedback" not in decision.candidates
        assert memory.cold_starts == (120.0,) * 5


def test_what_is_counted_when_answers_end_is_judged_an_answer_later() -> None:
    whole = Objective("EndToEndLatency", 95, 60.0)
    signals = seen(2, 1.0, latencies=tuple(Latency(each, 0.05, 1000) for each in (TTFT, TPOT, whole)))
    memory = remembered(settled_since=0.0, outlook=replace(CALM, stay_seconds=40.0))
    for now, known in ((59.0, []), (60.0, [TTFT]), (99.0, [TTFT]), (100.0, [TTFT, TPOT, whole])):
        situation = Situation(POLICY, signals, memory, Estimate(1.0, None), now)
        assert [latency.objective for latency in situation.present_latencies] == known


def test_a_replica_that_crashes_again_and_again_is_stuck_and_not_starting() -> None:
    """Ready for a minute, and then not for six: the others are late meanwhile, and one more is asked for."""
    memory = remembered(cold_starts=(200.0,) * 5, ready_since=dict.fromkeys(fleet(8).ready, -9e3))
    late = (Latency(TTFT, 3.0, 300, Bracket(1.0, 1.0, 0.5, 0.5)),)
    asked = []
    for tick in range(1200):
        ready = 8 if 2 * tick % 440 < 60 else 7
        signals = seen(8, 2.0, latencies=late, waiting=2.0, fleet=fleet(8, ready), running=20.0)
        decision, memory = decide(POLICY, signals, memory, 2.0 * tick)
        asked.append("feedback" in decision.candidates)
    assert any(asked)


def test_clients_that_try_again_while_none_is_ready_are_no_load_to_learn_from() -> None:
    memory, desired = remembered(), []
    for tick in range(120):
        signals = seen(3, 4.0) if tick < 60 else seen(3, 60.0, fleet=fleet(3, 0), reporting=frozenset())
        decision, memory = decide(POLICY, signals, memory, 2.0 * tick)
        desired.append(decision.desired)
    assert max(desired) == 3
    assert memory.outlook.load == pytest.approx(4.0)
    for tick in range(60):  # rates still look back at them, and then at the usual load again
        rate = max(60.0 - tick * 2.0, 4.0)
        decision, memory = decide(POLICY, seen(3, rate), memory, 240 + 2.0 * tick)
        assert decision.desired <= 3
    assert memory.outlook.load == pytest.approx(4.0)


def test_a_service_that_begins_gets_what_its_load_needs_before_one_is_ready() -> None:
    memory, count = remembered(prompt_tokens=40.0, generation_tokens=40.0), 1
    for tick in range(20):
        signals = seen(count, 8.0, fleet=fleet(count, 0), reporting=frozenset())
        decision, memory = decide(POLICY, signals, memory, 2.0 * tick)
        count = decision.desired
    assert count >= 3


def test_replicas_that_start_leave_forecasts_to_be_judged() -> None:
    """A new one is silent until its first scrape."""
    memory = remembered(cold_starts=(60.0,))
    for tick in range(50):
        _, memory = decide(POLICY, seen(2, 5.0), memory, 2.0 * tick)
    pending = len(memory.outlook.error.pending)
    new = seen(3, 5.0, reporting=fleet(2).ready)
    _, memory = decide(POLICY, new, memory, 100.0)
    assert len(memory.outlook.error.pending) >= pending - 1 > 2
    _, memory = decide(POLICY, new, memory, 100.0 + POLICY.windows.max_age)
    assert not memory.outlook.error.pending


def test_an_objective_out_of_reach_keeps_nobody() -> None:
    policy = replace(CROWDED, objectives=(replace(TPOT, target_seconds=0.001),))
    late = (Latency(policy.objectives[0], 0.5, 1000),)
    assert decide(policy, seen(4, 0.5, latencies=late), remembered(), 0.0)[0].desired == 3


def test_a_quantile_of_few_requests_says_nothing() -> None:
    late = (Latency(TTFT, 3.0, 10),)
    decision, _ = decide(POLICY, seen(2, 5.0, waiting=1.0, latencies=late), Memory(), 0.0)
    assert (decision.desired, decision.reason) == (2, Reason.LEARNING)


def test_feedback_waits_for_replicas_that_are_starting() -> None:
    signals = seen(2, 5.0, waiting=50.0, fleet=fleet(2, ready=1))
    assert decide(POLICY, signals, Memory(), 0.0)[0].desired == 2


def test_before_the_model_is_fitted_an_idle_service_goes_to_its_minimum() -> None:
    decisions = run(POLICY, seen(3, 0.0, running=0.0), Memory(), 40)
    assert decisions[-1].desired == 1


def test_an_objective_out_of_reach_is_reported_and_not_scaled_on() -> None:
    policy = replace(POLICY, objectives=(Objective("TimeToFirstToken", 95, 0.001),))
    late = (Latency(policy.objectives[0], 0.5, 1000),)
    decision, _ = decide(policy, seen(1, 0.5, latencies=late, waiting=1.0), remembered(), 0.0)
    assert (decision.desired, decision.reason) == (1, Reason.SLO_INFEASIBLE)
    assert "cannot be met by an idle replica" in decision.message


def test_a_message_counts_replicas_and_says_why_there_is_no_model() -> None:
    message = decide(POLICY, seen(1, 1.0), Memory(), 0.0)[0].message
    assert message.startswith("Learning: 1 replica; learning asks for 1; ")
    assert "the latency model is not fitted yet (0.0 of 2 windows of steps)" in message
    assert decide(POLICY, seen(2, 1.0), Memory(), 0.0)[0].message.startswith("Learning: 2 replicas;")
    poor = LatencyModel(num_samples=93.0, relative_error=0.52, coefficients=(0.02, 0.002, 2e-6))
    message = decide(POLICY, seen(1, 1.0), Memory(model=poor), 0.0)[0].message
    assert "the latency model does not fit: it is 52 % off, and a plan accepts 35 %" in message
    grown = decide(POLICY, seen(1, 8.0), remembered(), 0.0)[0].message
    assert grown.startswith("ScalingUp: 1 -> 3 replicas; ")
    shrunk = decide(POLICY, seen(2, 0.1), remembered(), 0.0)[0].message
    assert shrunk.startswith("ScalingDown: 2 -> 1 replica; ")


def test_windows_that_hold_steps_of_a_replica_that_warms_up_teach_nothing() -> None:
    """Twenty seconds are its first ones, and a window looks as far back. Silence in between is nothing."""
    steps = (StepMoments("pod-0", 0.5, 4, 4, 100, 50),)
    memory, taught = Memory(), []
    for tick in range(25):
        signals = seen(1, 1.0, steps=steps) if tick != 8 else Signals(fleet(1))
        _, memory = decide(POLICY, signals, memory, 2.0 * tick)
        taught.append(memory.model.num_samples > 0)
    assert taught == [False] * 20 + [True] * 5


def test_looking_often_teaches_no_more_than_looking_once_a_window() -> None:
    def learn(tick_seconds: float) -> LatencyModel:
        memory = Memory()
        for tick in range(round(400 / tick_seconds)):
            steps = (StepMoments("pod-0", 0.05, 4, 4, 100, 50),)
            _, memory = decide(POLICY, seen(1, 1.0, steps=steps), memory, tick_seconds * tick)
        return memory.model

    assert learn(2.0).gram[0][0] == pytest.approx(learn(20.0).gram[0][0], rel=0.1)


def start(memory: Memory, *seconds: float) -> Memory:
    """See pods that became Ready, each after so many seconds, in the order of their numbers."""
    ready = fleet(len(seconds), cold_starts={f"pod-{i}": value for i, value in enumerate(seconds)})
    return decide(POLICY, seen(1, 1.0, fleet=replace(ready, desired=1)), memory, 0.0)[1]


def test_the_forecast_looks_as_far_ahead_as_most_cold_starts_take() -> None:
    assert start(Memory(), *[30.0] * 18, 300.0, 9999.0).cold_start_seconds == 30.0
    assert start(Memory(), *[30.0] * 17, 300.0, 300.0).cold_start_seconds == 300.0
    assert start(start(Memory(), 30.0)).cold_start_seconds == 30.0


def test_a_pod_that_is_ready_anew_is_no_cold_start_however_many_there_are() -> None:
    many = start(Memory(), *[30.0] * 50)
    assert start(many, *[2000.0] * 50).cold_start_seconds == 30.0


def test_the_explanation_is_json_and_holds_the_figures() -> None:
    signals = seen(1, 8.0, latencies=(Latency(TTFT, 0.4, 100),))
    decision, memory = decide(POLICY, signals, remembered(), 0.0)
    shown = json.loads(json.dumps(render_decision(decision, signals, memory)))
    assert shown["desired"] == 3
    assert shown["model"]["alphaSeconds"] == 0.02
    assert shown["estimate"]["capacity"]["limit"]
    assert shown["signals"]["arrivalsPerSecond"] == 8.0


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: Policy(0, 1), "min_replicas"),
        (lambda: Policy(3, 2), "write 3"),
        (lambda: Objective("TimeToFirstToken", 100, 1), "from 1 to 99"),
        (lambda: Objective("TimeToFirstToken", 95, 0), "more than 0"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(write: object, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        write()  # type: ignore[operator]


def test_while_a_ready_replica_is_silent_no_count_falls_and_nothing_is_learned_of_the_load() -> None:
    """Four of five targets fail: what is left is neither the load nor the queue."""
    known = seen(5, 0.1)
    partly, memory, desired = replace(known, reporting=fleet(1).ready), remembered(), []
    for tick in range(60):
        signals = partly if tick >= 2 else known
        decision, memory = decide(POLICY, replace(signals, fleet=fleet(5)), memory, 2.0 * tick)
        desired.append(decision.desired)
    assert desired == [4, 4] + [5] * 58
    assert decision.reason == Reason.SIGNALS_MISSING
    assert "no samples of pod-1, pod-2, pod-3 and 1 more" in decision.message
    assert memory.informed_since is None


def test_a_replica_that_has_just_started_may_be_silent_for_a_while() -> None:
    memory, reasons = remembered(), []
    for tick in range(20):
        signals = seen(2, 4.0, reporting=fleet(1).ready)
        decision, memory = decide(POLICY, signals, memory, 2.0 * tick)
        reasons.append(decision.reason)
        assert decision.desired == 2
    assert Reason.SIGNALS_MISSING not in reasons[:7]
    assert set(reasons[8:]) == {Reason.SIGNALS_MISSING}


def test_the_scale_down_window_covers_what_a_rate_looks_back_and_a_cold_start() -> None:
    def ticks_until_lower(policy: Policy, memory: Memory) -> float:
        memory = replace(memory, informed_since=None, recommendations=())
        for tick in range(500):
            decision, memory = decide(policy, seen(4, 0.1), memory, 2.0 * tick)
            if decision.desired < 4:
                return 2.0 * tick
        raise AssertionError

    assert ticks_until_lower(POLICY, remembered()) == 62
    slow = replace(POLICY, windows=fit_windows(60))
    assert ticks_until_lower(slow, remembered()) == 242
    assert ticks_until_lower(POLICY, remembered(cold_starts=(200.0,))) == 300
    assert ticks_until_lower(replace(POLICY, scale_down_window_seconds=400), remembered()) == 400


def test_while_replicas_of_two_revisions_serve_nothing_is_learned_and_no_count_falls() -> None:
    steps = tuple(StepMoments(f"pod-{i}", 0.05, 4, 4, 100, 50) for i in range(4))
    mixed = fleet(4)
    mixed = replace(mixed, revisions=mixed.revisions | {"pod-3": "two"})
    memory = remembered(ready_since={f"pod-{i}": -100.0 for i in range(4)}, revision="one")
    decision, after = decide(POLICY, seen(4, 0.1, fleet=mixed, steps=steps), memory, 0.0)
    assert (decision.desired, decision.binding) == (4, "rollout")
    assert after.model == memory.model
    decision, after = decide(POLICY, seen(4, 0.1, steps=steps), memory, 0.0)
    assert decision.desired == 3
    assert after.model.num_samples > memory.model.num_samples


def test_a_new_revision_is_learned_anew_from_what_is_known_of_the_old_one() -> None:
    model = replace(FITTED, gram=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
    memory = remembered(model=model, revision="old")
    _, memory = decide(POLICY, seen(2, 1.0), memory, 0.0)
    assert memory.revision == "one"
    assert memory.model.coefficients == model.coefficients
    assert memory.model.gram[0][0] < 0.1
    assert decide(POLICY, seen(2, 1.0), memory, 2.0)[1].model == memory.model


def test_what_the_model_is_unsure_of_adds_no_replica_and_lets_none_go() -> None:
    def model(information: float) -> LatencyModel:
        gram = tuple(tuple(information * (i == j) for j in range(3)) for i in range(3))
        return replace(FITTED, gram=gram, relative_error=0.1)  # type: ignore[arg-type]

    sure, unsure = model(1e6), model(0.01)
    assert decide(POLICY, seen(3, 4.6), remembered(model=sure), 0.0)[0].desired == 2
    assert decide(POLICY, seen(3, 4.6), remembered(model=unsure), 0.0)[0].desired == 3
    assert decide(POLICY, seen(2, 4.6), remembered(model=unsure), 0.0)[0].desired == 2


def test_a_count_that_feedback_raised_does_not_fall_back_to_what_the_model_says() -> None:
    late = (Latency(TTFT, 3.0, 100),)
    memory = remembered(settled_since=-100.0, spent={TTFT.name: 119.0})
    before, memory = decide(POLICY, seen(2, 4.0, latencies=late), memory, 0.0)
    assert (before.desired, before.binding, before.candidates["forecast"]) == (3, "feedback", 2)
    after, memory = decide(POLICY, seen(3, 4.0), memory, 2.0)
    assert after.candidates["forecast"] == 3
    hours = replace(memory, correction=memory.correction)
    for tick in range(3 * 1800):
        _, hours = decide(POLICY, seen(3, 4.0), hours, 4.0 + 2.0 * tick)
    assert hours.correction < 1 + 0.1 * (memory.correction - 1)


def late(seconds: float = 3.0) -> tuple[Latency, ...]:
    """One in three surely late."""
    return (Latency(TTFT, seconds, 100, Bracket(0.75, 1.0, 0.5, 0.67)),)


def test_feedback_ends_at_night_when_nobody_is_left_to_be_late() -> None:
    """At the maximum the count never changes. Too few come to say anything, and one sequence runs."""
    policy, memory, count = replace(POLICY, max_replicas=8), remembered(), 8
    for tick in range(600 + 1800):
        is_day = tick < 600
        latencies = late() if is_day else (Latency(TTFT, 0.5, 3.0),)
        signals = seen(count, 30.0 if is_day else 0.5, latencies=latencies)
        decision, memory = decide(policy, signals, memory, 2.0 * tick)
        count = decision.desired
    assert count == 1
    assert memory.spent == {}
    assert memory.correction < 1.5


def test_feedback_stops_where_it_does_not_help() -> None:
    """One sick replica, or prompts that no replica computes in time."""
    policy, memory, counts = replace(POLICY, max_replicas=40), remembered(), [2]
    for tick in range(3600):
        decision, memory = decide(policy, seen(counts[-1], 1.0, latencies=late()), memory, 2.0 * tick)
        counts.append(decision.desired)
    assert 3 <= max(counts) <= 6


def test_many_more_replicas_than_needed_say_nothing_of_the_model() -> None:
    policy, memory = replace(POLICY, min_replicas=6), remembered()
    for tick in range(120):
        _, memory = decide(policy, seen(6, 1.5, latencies=late()), memory, 2.0 * tick)
    assert memory.correction == 1.0


def test_where_no_load_explains_why_requests_are_late_the_model_is_not_corrected() -> None:
    """One request a second, and two replicas: however many times that, the model asks for one."""
    memory = remembered(settled_since=-1000.0, spent={TTFT.name: 200.0}, correction=1.2)
    decision, after = decide(POLICY, seen(2, 0.1, latencies=late()), memory, 0.0)
    assert decision.candidates["feedback"] == 3
    assert 1.19 < after.correction < 1.2


def test_at_the_maximum_the_model_is_not_corrected() -> None:
    memory = remembered(settled_since=-1000.0, spent={TTFT.name: 200.0})
    for most, is_corrected in ((4, True), (3, False)):
        policy = replace(POLICY, max_replicas=most)
        _, after = decide(policy, seen(3, 7.0, latencies=late()), memory, 0.0)
        assert (after.correction > 1.0) is is_corrected


def test_a_queue_is_worked_off_by_a_corrected_model_too() -> None:
    queues = [
        decide(POLICY, seen(2, 8.0, waiting=60.0), remembered(correction=correction), 0.0)[0]
        for correction in (1.0, 2.0)
    ]
    assert queues[1].candidates["queue"] > queues[0].candidates["queue"]


def test_doubt_that_puts_an_objective_out_of_reach_lets_no_replica_go() -> None:
    """Were steps half as slow again, no replica would be in time, and nothing would be asked for."""
    tight = replace(POLICY, objectives=(Objective("TimeToFirstToken", 95, 0.3),), max_replicas=100)
    memory, count = remembered(), 30
    for tick in range(200):
        decision, memory = decide(tight, seen(count, 20.0), memory, 2.0 * tick)
        count = decision.desired
    needed, _ = decide(replace(tight, dead_band=0.0), seen(1, 24.0), remembered(), 0.0)
    assert count >= needed.candidates["forecast"]


def test_a_count_that_surely_does_not_suffice_is_not_raised_by_the_dead_band() -> None:
    decision, _ = decide(replace(POLICY, dead_band=5.0), seen(3, 2.0), remembered(), 0.0)
    assert (decision.desired, decision.binding) == (3, "deadBand")


def test_replicas_that_do_not_serve_say_nothing_of_the_model() -> None:
    """Four of eight have been Pending for an hour, for want of room."""
    full = seen(8, 8.0, latencies=late(), fleet=fleet(8, 4))
    memory = remembered(unready_since=dict.fromkeys(full.fleet.revisions, -3600.0), spent={TTFT.name: 200.0})
    memory = replace(memory, settled_since=-1000.0)
    decision, after = decide(POLICY, full, memory, 0.0)
    assert "feedback" in decision.candidates
    assert after.correction == 1.0


def test_while_prometheus_does_not_say_how_late_requests_are_no_count_falls() -> None:
    memory = remembered()
    for tick in range(120):
        unanswered = frozenset({TTFT.name})
        decision, memory = decide(POLICY, seen(4, 0.5, unanswered=unanswered), memory, 2.0 * tick)
        assert decision.desired == 4
    assert decision.reason == Reason.SIGNALS_MISSING


def test_a_replica_that_never_becomes_ready_is_not_waited_for_for_ever() -> None:
    memory, counts = Memory(), []
    for tick in range(120):
        signals = seen(20, 5.0, waiting=50.0 + tick, latencies=late(), fleet=fleet(20, ready=19))
        decision, memory = decide(replace(POLICY, max_replicas=40), signals, memory, 2.0 * tick)
        counts.append(decision.desired)
    assert set(counts[:30]) == {20}
    assert counts[-1] > 20


def test_an_objective_that_no_idle_replica_meets_never_sizes_the_fleet() -> None:
    """From 40 to 65 ms of an empty step, for 50 ms a token."""
    policy = replace(CROWDED, objectives=(replace(TPOT, target_seconds=0.05),), max_replicas=100)
    counts = []
    for alpha in (0.040, 0.0465, 0.049, 0.0499, 0.0505, 0.052, 0.060, 0.065):
        model = replace(FITTED, coefficients=(alpha, 2e-5, 2e-8), relative_error=0.25)
        signals = seen(2, 10.0, prompt_tokens=400, generation_tokens=100, running=40.0)
        counts.append(decide(policy, signals, remembered(model=model), 0.0)[0].candidates["forecast"])
    assert max(counts[1:]) <= counts[0] + 5


def test_a_step_down_that_is_late_to_be_followed_is_not_withdrawn() -> None:
    """The count in status is the old one for some ticks more."""
    memory, desired = remembered(), []
    for tick in range(4):
        decision, memory = decide(POLICY, seen(4, 0.5), memory, 2.0 * tick)
        desired.append(decision.desired)
    assert desired == [3, 3, 3, 3]
