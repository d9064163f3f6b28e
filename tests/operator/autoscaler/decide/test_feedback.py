"""Late requests for hours: those that more replicas cure, and those that none does."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace_operator.autoscaler.decide.attempts import REMEMBERED_SECONDS, Attempts
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Bracket, Fleet, Latency, Signals, Unplaced
from tests.operator.autoscaler.hours import HOUR, LONGER_TICKS, POLICY, TTFT, measure, play, remembered, see
from tests.operator.autoscaler.made_signals import make_fleet
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

TPOT = Objective("TimePerOutputToken", 95, 0.05)
WIDE = Policy(1, 40, (TTFT,))


@LONGER_TICKS
@pytest.mark.parametrize("late_share", [0.06, 0.07, 0.1])
def test_requests_that_no_replica_brings_in_time_take_few_of_them(
    late_share: float, tick_seconds: float
) -> None:
    """A few prompts are too long. By chance a minute has more of them, or fewer."""
    rng, window = random.Random(1), deque[tuple[int, int]](maxlen=round(60 / tick_seconds))

    def look(_: float, count: int) -> Signals:
        came = sum(rng.random() < 0.6 for _ in range(round(5 * tick_seconds)))
        window.append((came, sum(rng.random() < late_share for _ in range(came))))
        total, late = (sum(column) for column in zip(*window, strict=True))
        share = 1 - late / total
        seconds = 2.0 if share < 0.95 else 0.5
        latency = Latency(TTFT, seconds, float(total), Bracket(1.0, 1.0, share, share))
        return see(count, 3.0, running=3.0, latencies=(latency,))

    counts, _, _ = play(look, 3, 4 * HOUR, WIDE, tick_seconds=tick_seconds)
    assert max(counts) <= 10
    assert sum(counts) / len(counts) <= 4


def cured_by(needed: int, rate: float) -> Callable[[float, int], Signals]:
    def look(_: float, count: int) -> Signals:
        share = 0.97 if count >= needed else 0.97 - 0.8 * (1 - count / needed)
        return see(count, rate, running=20.0, latencies=measure(round(share, 4), rate * 60))

    return look


@LONGER_TICKS
@pytest.mark.parametrize(("start", "needed", "rate"), [(3, 8, 12.0), (11, 20, 60.0), (32, 60, 180.0)])
def test_a_model_that_is_far_too_optimistic_is_overruled_also_of_many_replicas(
    start: int, needed: int, rate: float, tick_seconds: float
) -> None:
    """One replica of forty more would make no difference that can be seen."""
    policy = Policy(1, 100, (TTFT,))
    counts, _, _ = play(cured_by(needed, rate), start, 2 * HOUR, policy, tick_seconds=tick_seconds)
    assert needed - 1 <= counts[-1] <= 1.2 * needed


def test_a_large_service_whose_count_rises_all_the_time_is_not_too_late_all_the_time() -> None:
    """200 to 1,200 requests a second in three hours; a tenth more replicas are needed than the model says."""
    policy, memory, count, late = Policy(1, 1000, (TTFT,)), remembered(cold_starts=(60.0,)), 41, 0
    for tick in range(0, int(3 * HOUR), 6):
        rate = 200 + 1000 * tick / (3 * HOUR)
        needed = rate * 1.1 / 5.55
        share = 1 - (0.045 + 0.55 * max(0.0, 1 - count / needed))
        late += share < 0.95
        signals = see(count, rate, running=float(count), latencies=measure(share, rate * 60))
        decision, memory = decide(policy, signals, memory, float(tick))
        count = decision.desired
    assert late <= 0.8 * 3 * HOUR / 6
    assert memory.correction > 1.02


@pytest.mark.parametrize("ticks_late", [1, 2, 90, 900])
def test_a_count_that_does_not_follow_uses_nothing_up(ticks_late: int) -> None:
    """Status is a tick late, or somebody has pinned the count for half an hour."""
    is_pin = ticks_late > 2
    memory, asked, counts = remembered(), [4] * ticks_late, [4]
    for tick in range(900 + ticks_late):
        share = {4: 0.3, 5: 0.5, 6: 0.7}.get(counts[-1], 0.99)
        signals = see(counts[-1], 4.5, running=5.0, latencies=measure(share))
        decision, memory = decide(POLICY, signals, memory, 2.0 * tick)
        asked.append(decision.desired)
        counts.append(4 if tick < ticks_late else decision.desired if is_pin else asked[tick + 1])
    assert max(counts) == counts[-1] == 7


def test_a_step_is_judged_only_once_its_replicas_serve() -> None:
    """A tenth of thirty starts in five minutes, while a fifth of the requests is late."""
    memory, born, count = remembered(cold_starts=(300.0,)), dict[str, float](), 30
    for tick in range(1800):
        now = 2.0 * tick
        fleet = make_fleet(count)
        for pod in fleet.revisions:
            born.setdefault(pod, now if tick else -1000.0)
        ready = frozenset(pod for pod in fleet.revisions if now - born[pod] >= 300)
        fleet = replace(fleet, ready=ready)
        latencies = measure(0.8 if len(ready) < 39 else 0.99, 6000.0)
        signals = see(count, 60.0, fleet=fleet, reporting=ready, running=100.0, latencies=latencies)
        decision, memory = decide(WIDE, signals, memory, now)
        if now < 300:
            assert decision.desired <= 33
        count = decision.desired


@LONGER_TICKS
def test_what_did_not_help_says_nothing_of_another_cause(tick_seconds: float) -> None:
    """For an hour some requests are late whatever the count; then the load doubles, and all are."""

    def look(now: float, count: int) -> Signals:
        if now < HOUR:
            return see(count, 4.5, running=5.0, latencies=measure(0.92))
        return see(count, 9.0, running=9.0, latencies=measure(0.0 if count < 6 else 0.97))

    counts, _, _ = play(look, 2, 1.5 * HOUR, tick_seconds=tick_seconds)
    assert counts[-1] == 6


def test_what_did_not_help_another_revision_is_tried() -> None:
    failed = Attempts(5, 2.0, 9.0, 0.0, 6, futile=2)
    memory = remembered(
        revision="zero", attempts={TTFT.name: failed}, correction=2.25, spent={TTFT.name: 100.0}
    )
    _, after = decide(POLICY, see(7, 9.0), memory, 10.0)
    assert (after.attempts, after.spent) == ({}, {})
    assert after.correction == pytest.approx(1.5, rel=0.01)


@LONGER_TICKS
def test_a_night_with_late_requests_that_no_replica_cures_does_not_keep_the_count_of_the_day(
    tick_seconds: float,
) -> None:
    def look(now: float, count: int) -> Signals:
        rate, share = (60.0, 0.99) if now < HOUR else (2.0, 0.9)
        return see(count, rate, running=rate / 3, latencies=measure(share, rate * 60))

    counts, _, _ = play(look, 20, 4 * HOUR, WIDE, tick_seconds=tick_seconds)
    assert min(counts[int(3400 / tick_seconds) : int(HOUR / tick_seconds)]) >= 10
    assert counts[-1] <= 3


@LONGER_TICKS
@pytest.mark.parametrize("number", [2, 5, 9])
def test_a_replica_that_is_not_ready_for_a_moment_hides_nothing_of_a_small_service(
    number: int, tick_seconds: float
) -> None:
    def look(now: float, count: int) -> Signals:
        fleet = make_fleet(count)
        gone = f"pod-{int(now // 58) % count}" if now % 58 < 4 else None
        fleet = replace(fleet, ready=fleet.ready - {gone})
        share = 0.9 if count <= number else 0.99
        latencies = measure(share, 120.0 * number)
        return see(
            count, 2.0 * number, fleet=fleet, reporting=fleet.ready, running=3.0 * number, latencies=latencies
        )

    counts, _, _ = play(look, number, HOUR, WIDE, tick_seconds=tick_seconds)
    assert max(counts) == number + 1


@pytest.mark.parametrize("tick_seconds", [2.0, 6.0])
def test_budgets_are_spent_in_seconds_and_not_in_ticks(tick_seconds: float) -> None:
    memory, now, count = remembered(), 0.0, 3
    while count == 3 and now < HOUR:
        decision, memory = decide(POLICY, see(3, 3.0, latencies=measure(0.91)), memory, now)
        count, now = decision.desired, now + tick_seconds
    assert 190 <= now <= 240


def test_replicas_that_wait_for_a_node_are_no_replicas_that_were_too_few() -> None:
    memory, count = remembered(cold_starts=(60.0,)), 3
    for tick in range(400):
        pods = [f"pod-{number}" for number in range(count)]
        ready = frozenset(pods[:3])
        unplaced = {pod: Unplaced(2.0 * tick, "no room") for pod in pods[3:]}
        fleet = Fleet(dict.fromkeys(pods, "one"), ready, unplaced=unplaced, desired=count)
        signals = see(count, 12.0, fleet=fleet, reporting=ready, running=12.0, latencies=measure(0.75))
        decision, memory = decide(WIDE, signals, memory, 2.0 * tick)
        count = decision.desired
    assert count == 4


@pytest.mark.parametrize("edit", [True, False])
def test_an_objective_that_was_kept_once_is_in_reach_again_where_more_replicas_may_be(*, edit: bool) -> None:
    """Prompts that are alike: the model says that no number keeps it."""
    kept = {TTFT: -2 * REMEMBERED_SECONDS}
    memory = remembered(kept=kept, asked=4, max_replicas=4 if edit else POLICY.max_replicas)
    _, after = decide(POLICY, see(4, 3.0), memory, 0.0)
    assert (after.kept[TTFT] > -REMEMBERED_SECONDS) is edit


def test_each_objective_in_doubt_has_its_own_half_hour() -> None:
    policy = replace(POLICY, objectives=(TTFT, TPOT))

    def doubt(objective: Objective) -> Latency:
        target = objective.target_seconds
        return Latency(objective, 1.2 * target, 600.0, Bracket(0.5 * target, 2 * target, 0.5, 0.99))

    memory, now = remembered(), 0.0
    for now in range(0, 2400, 2):
        _, memory = decide(policy, see(4, 1.0, latencies=(doubt(TTFT),)), memory, float(now))
    decision, memory = decide(policy, see(4, 1.0, latencies=(doubt(TTFT), doubt(TPOT))), memory, now + 2.0)
    assert memory.doubted_since == {TTFT.name: 0.0, TPOT.name: now + 2.0}
    assert (decision.desired, decision.binding) == (4, "objectives")
