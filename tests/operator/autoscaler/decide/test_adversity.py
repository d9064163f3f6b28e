"""Failures, few requests and odd lengths, each long enough to show where a count ends up."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.memory import KEPT_SECONDS, Memory, TooFew
from millrace_operator.autoscaler.decide.memory_update import GRACE_SECONDS
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.decide.prior import note_present, parse_prior, read_prior, render_prior
from millrace_operator.autoscaler.decide.situation import DOUBT_SECONDS
from millrace_operator.autoscaler.signals.observation import (
    Bracket,
    Fleet,
    Latency,
    Signals,
    StepMoments,
    TrialStep,
    Unplaced,
)
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import draw_requests, fixed_lengths
from millrace_operator.autoscaler.simulate.run import Ours, Setting, simulate
from tests.operator.autoscaler.hours import (
    FITTED,
    HOUR,
    LONGER_TICKS,
    POLICY,
    TTFT,
    measure,
    play,
    remembered,
    see,
)
from tests.operator.autoscaler.made_signals import make_fleet
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER


@pytest.mark.parametrize(("percentile", "number"), [(95, 58.0), (99, 298.0), (90, 28.0)])
def test_few_requests_that_are_nearly_all_late_lower_nothing_and_ask_for_more(
    percentile: int, number: float
) -> None:
    objective = Objective("TimeToFirstToken", percentile, 1.0)
    policy, late = Policy(1, 10, (objective,)), measure(0.0, number, objective)
    counts, _, _ = play(lambda _, count: see(count, number / 60, latencies=late), 6, 900.0, policy)
    assert min(counts) == 6 < counts[-1]


def test_few_requests_of_which_some_are_late_say_nothing() -> None:
    late = measure(0.9, 58.0)  # six of them; three are allowed, and twelve may come by chance
    counts, _, _ = play(lambda _, count: see(count, 58 / 60, latencies=late), 6, 900.0)
    assert counts[-1] == 1


@LONGER_TICKS
def test_an_objective_that_is_kept_as_measured_is_in_reach_whatever_the_model_says(
    tick_seconds: float,
) -> None:
    """Long prompts that are all alike: the model takes the longest for three times as long."""
    objectives = (Objective("TimeToFirstToken", 95, 1.5), Objective("TimePerOutputToken", 95, 0.4))
    policy, model = Policy(1, 20, objectives), replace(FITTED, coefficients=(0.02, 2e-4, 1e-7))
    shapes = {"prompt_tokens": 4000.0, "generation_tokens": 100.0, "running": 8.0}

    def live(share: float, memory: Memory, begin: float, end: float) -> tuple[Decision, Memory]:
        def look(_: float, count: int) -> Signals:
            return see(count, 3.0, latencies=measure(share, objective=objectives[0]), **shapes)

        _, decision, memory = play(look, 8, end - begin, policy, memory, begin, tick_seconds)
        return decision, memory

    decision, memory = live(1.0, remembered(model=model), 0.0, 600.0)
    assert decision.estimate.infeasible == ()
    decision, memory = live(0.4, memory, 600.0, KEPT_SECONDS)
    assert decision.estimate.infeasible == ()
    decision, _ = live(0.4, memory, KEPT_SECONDS, KEPT_SECONDS + 700.0)
    assert decision.estimate.infeasible == (objectives[0].name,)


def test_prompts_that_are_alike_are_served_in_time() -> None:
    """Of 4000 tokens, 5 % more or less. Five replicas keep 94.6 %, and six 98 %."""
    policy = Policy(1, 20, (Objective("TimeToFirstToken", 95, 2.0),))
    hardware = Hardware(token_seconds=2e-4, cold_start_seconds=60.0)
    load = draw_requests(lambda _: 3.0, 3.0, HOUR, fixed_lengths(4000, 100, 0.05), 1)
    setting = Setting(hardware, policy.objectives, initial_replicas=8, seed=1)
    assert simulate(setting, Ours(policy), load, HOUR).attainment(policy.objectives) >= 0.95


@LONGER_TICKS
def test_an_objective_that_may_be_missed_for_ever_holds_the_count_up_for_half_an_hour(
    tick_seconds: float,
) -> None:
    """The target and all latencies are in one bucket, whatever the load."""
    objective = Objective("TimeToFirstToken", 95, 0.6)
    seen = (Latency(objective, 0.74, 90.0, Bracket(0.5, 0.75, 0.02, 1.0)),)
    policy = Policy(1, 20, (objective,))
    counts, _, _ = play(
        lambda _, count: see(count, 1.5, latencies=seen), 12, HOUR, policy, tick_seconds=tick_seconds
    )
    assert counts[int(DOUBT_SECONDS / tick_seconds)] == 12
    assert counts[-1] <= 2


def test_a_step_of_feedback_that_helped_is_not_the_last() -> None:
    """So late that the first steps show nothing: the third leaves 60 %, and more are wanted."""
    shares = {6: 0.4, 7: 0.7}
    counts, _, _ = play(
        lambda _, count: see(
            count, 9.0, running=5.0, latencies=measure(0.0 if count < 6 else shares.get(count, 0.99))
        ),
        3,
        HOUR / 2,
    )
    assert max(counts) == 8


@LONGER_TICKS
def test_what_was_too_few_is_not_tried_again_and_again(tick_seconds: float) -> None:
    """The model asks for two, and seven do: the count falls once an hour, and not each nine minutes."""

    def look(rate: float) -> Callable[[float, int], Signals]:
        return lambda _, count: see(count, rate, running=5.0, latencies=measure(0.85 if count < 7 else 0.99))

    counts, decision, memory = play(look(9.0), 9, 3 * HOUR, tick_seconds=tick_seconds)
    falls = sum(later < sooner for sooner, later in pairwise(counts[int(1200 / tick_seconds) :]))
    assert falls <= 3
    assert decision.desired == 7
    counts, _, _ = play(look(6.0), 7, HOUR / 2, memory=memory, begin=3 * HOUR, tick_seconds=tick_seconds)
    assert min(counts) == 6  # with less load it is tried at once


def test_what_was_too_few_or_kept_says_nothing_of_another_revision() -> None:
    few = TooFew(6, 9.0, 0.0)
    memory = remembered(revision="zero", too_few=few, kept={TTFT: 0.0}, asked=7)
    decision, after = decide(POLICY, see(7, 9.0), memory, 10.0)
    assert (after.too_few, after.kept) == (None, {TTFT: 10.0 - KEPT_SECONDS + GRACE_SECONDS})
    assert "tooFew" not in decision.candidates
    decision, after = decide(POLICY, see(7, 9.0), replace(memory, revision="one"), 10.0)
    assert (after.too_few, decision.candidates["tooFew"], decision.binding) == (few, 7, "tooFew")


@LONGER_TICKS
def test_what_was_too_few_teaches_no_correction_while_it_is_remembered(tick_seconds: float) -> None:
    """The model asks for one less than is needed."""

    def look(_: float, count: int) -> Signals:
        return see(count, 9.0, running=5.0, latencies=measure(0.85 if count < 4 else 0.99))

    counts, _, memory = play(look, 3, HOUR, tick_seconds=tick_seconds)
    assert max(counts) == counts[-1] == 4
    assert memory.correction < 1.5


@LONGER_TICKS
@pytest.mark.parametrize("every", [170, 110, 58])
def test_replicas_that_begin_anew_now_and_then_do_not_hide_what_is_late(
    every: int, tick_seconds: float
) -> None:
    """One of thirty isn't Ready for 4 s. A tenth of the requests is late, twice what is allowed."""

    def look(now: float, count: int) -> Signals:
        fleet = make_fleet(count)
        gone = f"pod-{int(now // every) % count}" if now % every < 4 else None
        fleet = replace(fleet, ready=fleet.ready - {gone})
        return see(
            count,
            60.0,
            fleet=fleet,
            reporting=fleet.ready,
            running=100.0,
            latencies=measure(0.9 if count < 33 else 0.99, 3600),
        )

    counts, _, _ = play(look, 30, HOUR, Policy(1, 60, (TTFT,)), tick_seconds=tick_seconds)
    assert counts[-1] >= 33


@pytest.mark.parametrize("every", [2, 3])
def test_questions_that_fail_pay_nothing_of_what_was_late_back(every: int) -> None:
    def look(now: float, count: int) -> Signals:
        seen = see(count, 3.0, latencies=measure(0.91 if count < 5 else 0.99))
        if (now // 2) % every:
            return seen
        return replace(seen, latencies=(), unanswered=frozenset({TTFT.name}))

    counts, _, _ = play(look, 3, HOUR)
    assert counts[-1] == 5


@pytest.mark.parametrize("every", [85, 45])
def test_a_tick_without_an_answer_now_and_then_holds_no_count_for_ever(every: int) -> None:
    def look(now: float, count: int) -> Signals:
        return see(count, 0.5) if (now // 2) % every else Signals(make_fleet(count))

    counts, _, _ = play(look, 12, HOUR)
    assert counts[-1] == 1


def test_an_outage_still_asks_for_a_whole_window() -> None:
    def look(now: float, count: int) -> Signals:
        return Signals(make_fleet(count)) if 100 <= now < 200 else see(count, 0.5)

    counts, _, _ = play(look, 8, 370.0, memory=remembered(informed_since=None))
    assert set(counts) == {8}


def test_what_was_only_tried_gives_up_no_replica_in_a_full_cluster() -> None:
    fast = (TrialStep(0.0037, 1, 8), TrialStep(0.088, 256, 256), TrialStep(0.012, 16, 8400))
    pods = [f"pod-{number}" for number in range(8)]
    unplaced = {pod: Unplaced(1000.0, "no room") for pod in pods[4:]}
    fleet = Fleet(dict.fromkeys(pods, "one"), frozenset(pods[:4]), unplaced=unplaced, desired=8)
    signals = see(
        8, 10.0, fleet=fleet, reporting=fleet.ready, max_sequences=32.0, trial_steps={"pod-0": fast}
    )
    decision, memory = decide(POLICY, signals, Memory(), 0.0)
    assert memory.model.is_fitted
    assert decision.desired == 8


def test_sizes_of_zero_end_no_decision() -> None:
    for sizes in ({"max_sequences": 0.0}, {"kv_tokens": 0.0}):
        decision, _ = decide(POLICY, see(3, 2.0, **sizes), remembered(), 0.0)
        assert decision.desired >= 1


def restart(memory: Memory, revision: str) -> Memory:
    found = read_prior(parse_prior(json.dumps(render_prior(memory, "h100"))), revision, "h100")
    assert found is not None
    return found


def test_a_doubt_outlives_the_operator() -> None:
    """A revision that is four times slower, and a leader that begins before any load has shown it."""
    model = LatencyModel()
    for sequences in range(2, 200):
        size = 2 + sequences % 28
        steps = StepMoments("pod-0", 0.02 + 4e-4 * size + 8e-4 * size, size, size, 400.0 * size, 300)
        model = model.learn(steps)
    doubted = restart(remembered(model=model.distrust(), revision="two"), "two").model
    assert doubted.changes == ()
    for sequences in range(8):
        size = 10 + sequences
        steps = StepMoments("pod-0", 4 * (0.02 + 1.2e-3 * size), size, size, 400.0 * size, 300)
        doubted = doubted.learn(steps)
    assert doubted.predict(20, 8000) == pytest.approx(4 * (0.02 + 1.2e-3 * 20), rel=0.05)


def test_a_leader_that_begins_while_none_is_ready_takes_no_retries_for_load() -> None:
    fleet = replace(make_fleet(4), ready=frozenset())
    dark = Signals(fleet, frozenset(), 80.0, 80.0)
    memory = note_present(
        restart(remembered(cold_starts=(60.0,), revision="one"), "one"), fleet.revisions, 0.0
    )
    counts, _, _ = play(
        lambda _, count: replace(dark, fleet=replace(fleet, desired=count)), 4, 100.0, memory=memory
    )
    assert set(counts) == {4}
