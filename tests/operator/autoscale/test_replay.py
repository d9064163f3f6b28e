"""Whole sequences on simulated replicas whose hardware `decide` does not know."""

from collections.abc import Callable
from itertools import pairwise

from millrace_operator.autoscale.capacity import Replica, find_capacity
from millrace_operator.autoscale.decision import Reason
from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.policy import Objective, Policy
from millrace_operator.autoscale.simulate.fleet import Fleet, Hardware
from millrace_operator.autoscale.simulate.replay import Moment, replay

TTFT = Objective("TimeToFirstToken", 95, 1.0)
POLICY = Policy(1, 8, (TTFT,), max_sequences=16, scale_down_window_seconds=30, scale_down_interval_seconds=4)
HARDWARE = Hardware()
TRUTH = LatencyModel(coefficients=(HARDWARE.alpha, HARDWARE.beta, HARDWARE.gamma))
CAPACITY = find_capacity(Replica(TRUTH, 40, 40, 16), POLICY.objectives).rate


def ramp(at: float) -> float:
    """A third of a replica's capacity, up to three times it within a minute, then nothing."""
    if at >= 240:
        return 0.0
    return CAPACITY * min(0.33 + max(at - 60, 0) * 2.67 / 60, 3.0)


def simulate(rate_at: Callable[[float], float], seconds: float, **options: object) -> list[Moment]:
    return replay(POLICY, Fleet(HARDWARE, 1, seed=1), rate_at, seconds, **options)  # type: ignore[arg-type]


def count_changes(moments: list[Moment]) -> int:
    counts = [moment.decision.desired for moment in moments]
    return sum(one != other for one, other in pairwise(counts))


def test_a_ramp_to_three_replicas_load_is_followed_and_left_again() -> None:
    moments = simulate(ramp, 360)
    recovered = 120 + 2 * HARDWARE.cold_start_seconds + 30
    late = [
        m for m in moments if recovered <= m.at < 240 and (m.time_to_first_token or 0) > TTFT.target_seconds
    ]
    assert max(m.decision.desired for m in moments) >= 4
    assert not late
    assert moments[-1].decision.desired == 1
    assert moments[-1].decision.reason == Reason.AT_MINIMUM


def test_a_sudden_jump_recovers_within_two_cold_starts_and_half_a_minute() -> None:
    moments = simulate(lambda at: CAPACITY * (0.33 if at < 60 else 3.0), 180)
    recovered = 60 + 2 * HARDWARE.cold_start_seconds + 30
    assert all((m.time_to_first_token or 0) <= TTFT.target_seconds for m in moments if m.at >= recovered)


def test_prometheus_lost_at_the_peak_holds_every_replica() -> None:
    moments = simulate(ramp, 300, is_blind=lambda at: 150 <= at < 280)
    blind = [m.decision for m in moments if 152 <= m.at < 280]
    assert len({decision.desired for decision in blind}) == 1
    assert {decision.reason for decision in blind} == {Reason.SIGNALS_MISSING}
    after = [m.decision for m in moments if m.at >= 280]
    assert {decision.desired for decision in after} == {blind[0].desired}


def test_steady_noisy_load_does_not_flap() -> None:
    moments = simulate(lambda _: 1.5 * CAPACITY, 400)
    assert count_changes([m for m in moments if m.at > 100]) <= 3


def test_steady_noisy_load_does_not_flap_with_any_seed() -> None:
    changes = 0
    for seed in range(1, 8):
        moments = replay(POLICY, Fleet(HARDWARE, 1, seed=seed), lambda _: 1.5 * CAPACITY, 400)
        changes += count_changes([m for m in moments if m.at > 100])
    assert changes <= 8


def test_no_load_stays_at_the_minimum() -> None:
    assert {m.decision.desired for m in simulate(lambda _: 0.0, 60)} == {1}


def test_a_replay_is_reproducible() -> None:
    one, other = simulate(ramp, 90), simulate(ramp, 90)
    assert [m.decision.message for m in one] == [m.decision.message for m in other]


def test_scale_down_drains_the_idlest_and_cuts_no_request() -> None:
    fleet = Fleet(HARDWARE, 3, seed=2)
    fleet.advance(10, 2 * CAPACITY)
    started = len(fleet._arrivals)
    fleet.scale(1)
    fleet.advance(60, 0.0)
    assert fleet.num_replicas == 1
    assert fleet.num_finished == started
