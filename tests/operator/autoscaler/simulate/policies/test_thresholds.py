"""Rules that follow requests in flight or waiting: whole sequences, worked out by hand from each rule."""

from collections.abc import Iterable

import pytest

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.reading import EVERYTHING
from millrace_operator.autoscaler.simulate.policies.concurrency import Knative, KubeAI
from millrace_operator.autoscaler.simulate.policies.hpa import (
    Bounds,
    HpaInFlight,
    HpaQueue,
    Keda,
    recommend_by_pod,
    recommend_by_total,
)
from millrace_operator.autoscaler.simulate.run import Scaler
from tests.operator.autoscaler.made_signals import make_signals

BOUNDS = Bounds(1, 40)


def see(total: float | None, replicas: int, ready: int | None = None, waiting: float = 0.0) -> Signals:
    """Return the signals of replicas that share some requests in flight; None: the query failed."""
    ready = replicas if ready is None else ready
    if total is None:
        return make_signals(replicas, ready, rejected={EVERYTHING: "Prometheus did not answer"})
    shares = {f"pod-{index}": total / ready for index in range(ready)}
    return make_signals(replicas, ready, ready, running=total - waiting, waiting=waiting, in_flight=shares)


def play(scaler: Scaler, totals: Iterable[float | None], replicas: int, *, queued: bool = False) -> list[int]:
    """Return the counts that follow from totals, one a tick; replicas are ready at once."""
    counts = []
    for tick, total in enumerate(totals, 1):
        signals = see(total, replicas, waiting=total if queued and total is not None else 0.0)
        replicas = scaler.choose(signals, tick * scaler.tick_seconds).replicas
        counts.append(replicas)
    return counts


@pytest.mark.parametrize(
    ("values", "num_missing", "wanted"),
    [
        ([20, 20], 0, 4),
        ([10.9, 10.9], 0, 2),  # within the tolerance
        ([11.2, 11.2], 0, 3),
        ([20, 20], 1, 4),  # 40 on three pods, the missing one at zero
        ([12, 12], 1, 3),  # 24 on three would be less: the direction turns
        ([2, 2], 1, 2),  # 4 and the target of the missing one
        ([0, 0], 0, 0),
        ([10, 10], 2, 4),  # at the target: nothing to do, whatever is missing
    ],
)
def test_missing_pods_count_against_the_way_it_would_go(
    values: list[float], num_missing: int, wanted: int
) -> None:
    assert recommend_by_pod(values, num_missing, target=10.0) == wanted


def test_a_total_is_shared_out_but_for_the_tolerance() -> None:
    assert [recommend_by_total(total, 4, 10.0) for total in (43, 45, 37, 35, 0)] == [4, 5, 4, 4, 0]


def test_hpa_goes_up_by_four_or_twice_and_down_after_five_minutes() -> None:
    up = play(HpaInFlight(BOUNDS, 10.0), [10, 400, 400, 400, 400], replicas=1)
    assert up == [1, 5, 10, 20, 40]
    scaler = HpaInFlight(BOUNDS, 10.0)
    fall = play(scaler, [80, *[20] * 20], replicas=8)
    assert fall == [8] * 20 + [2]  # 300 s after the last tick that asked for eight


def test_hpa_holds_while_no_pod_shows_the_metric_and_keeps_what_was_wanted_before() -> None:
    assert play(HpaInFlight(BOUNDS, 10.0), [80, None, None, 20], replicas=8) == [8, 8, 8, 8]


def test_hpa_on_the_queue_sees_no_load_until_somebody_waits() -> None:
    waiting = [0.0, 0.0, 25.0, 25.0]
    assert play(HpaQueue(BOUNDS, 5.0), waiting, replicas=2, queued=True) == [2, 2, 5, 5]
    assert play(HpaQueue(BOUNDS, 5.0), [0.0] * 21, replicas=2, queued=True) == [2] * 20 + [1]


def test_keda_asks_at_every_sync_holds_what_fails_and_takes_emptiness_for_zero() -> None:
    assert play(Keda(BOUNDS, 10.0), [20, 60, 60, 60], replicas=2) == [2, 6, 6, 6]
    assert play(Keda(BOUNDS, 10.0), [20, None, None, None, 20], replicas=2) == [2] * 5
    empty = make_signals(2, 2, rejected={"running": "no samples"})
    keda = Keda(BOUNDS, 10.0)
    assert keda.choose(see(20, 2), 15.0).replicas == 2
    counts = [keda.choose(empty, 15.0 * tick).replicas for tick in range(2, 25)]
    assert counts[0] == 2
    assert counts[-1] == 1


def test_knative_keeps_the_count_it_finds_and_follows_the_stable_window_after_a_minute() -> None:
    counts = play(Knative(BOUNDS, 10.0), [13.9] * 45, replicas=6)
    assert counts[:31] == [6] * 31  # it starts in panic, which ends more than 60 s after its first look
    assert counts[31:] == [3, *[2] * 13]  # 13.9 / 7, at most half of them at a time


def test_knative_panics_at_twice_the_load_and_does_not_shrink_in_panic() -> None:
    scaler = Knative(BOUNDS, 10.0)
    calm = play(scaler, [14.0] * 45, replicas=2)
    assert set(calm) == {2}
    later = [scaler.choose(see(70.0, 2), 92.0 + 2 * tick) for tick in range(3)]
    assert [choice.replicas for choice in later] == [5, 8, 10]
    assert {choice.why for choice in later} == {"panic"}
    assert [scaler.choose(see(0.0, 10), 98.0 + 2 * tick).replicas for tick in range(5)] == [10] * 5


def test_kubeai_averages_ten_minutes_and_needs_three_votes_to_go_down() -> None:
    scaler = KubeAI(BOUNDS, 10.0)
    assert play(scaler, [20.0] * 60, replicas=2) == [2] * 60
    # 60 looks of 20 on average 20; n looks of 0 in their place: 20 (60 - n) / 60.
    assert play(scaler, [0.0] * 33, replicas=2) == [2] * 31 + [1, 1]
    assert play(scaler, [100.0] * 3, replicas=1) == [2, 2, 2]


def test_kubeai_holds_where_nothing_is_known() -> None:
    assert play(KubeAI(BOUNDS, 10.0), [40.0, None, None], replicas=4) == [4, 4, 4]


@pytest.mark.parametrize("rule", [HpaInFlight, HpaQueue, Keda, Knative, KubeAI])
def test_a_target_of_nothing_is_refused(rule: type) -> None:
    with pytest.raises(ValueError, match="target is 0; write more than 0"):
        rule(BOUNDS, 0)


@pytest.mark.parametrize("bounds", [(0, 3), (4, 3)])
def test_bounds_that_hold_nothing_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="write 1 or more, the smaller one first"):
        Bounds(*bounds)
