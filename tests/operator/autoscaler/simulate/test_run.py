"""A whole run: each request is answered or counted as lost, and each second of a pod is counted."""

from dataclasses import dataclass, replace

import pytest

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import draw_requests, fixed_lengths, step_rates
from millrace_operator.autoscaler.simulate.run import Choice, Run, Setting, Static, simulate

TTFT = Objective("TimeToFirstToken", 95, 1.0)
HARDWARE = Hardware(cold_start_seconds=30, cold_start_spread=0.0)
SETTING = Setting(HARDWARE, (TTFT,))
LENGTHS = fixed_lengths(500, 100)


@dataclass
class Planned:
    """Counts by time."""

    counts: dict[float, int]
    tick_seconds: float = 5.0
    windows: Windows = DEFAULT_WINDOWS

    def choose(self, signals: Signals, now: float) -> Choice:
        del signals
        return Choice(next(count for until, count in self.counts.items() if now < until), "planned")


def run(scaler: Planned | Static, rate: float = 4.0, seconds: float = 600.0, **other: object) -> Run:
    load = draw_requests(lambda _: rate, rate, seconds, LENGTHS, seed=5)
    return simulate(replace(SETTING, **other), scaler, load, seconds)  # type: ignore[arg-type]


def test_everybody_who_comes_is_answered() -> None:
    done = run(Static(2), initial_replicas=2)
    assert len(done.answers) == done.num_arrived > 2000
    assert done.num_refused == 0
    assert done.average_replicas == 2.0
    assert done.attainment((TTFT,)) > 0.99


def test_too_few_replicas_miss_the_objective() -> None:
    assert run(Static(1), rate=30.0).attainment((TTFT,)) < 0.3


def test_each_latency_counts_by_its_own_target() -> None:
    done = run(Static(1), rate=6.0)
    for metric, least, most in (("QueueTime", 0.0, 0.03), ("EndToEndLatency", 2.5, 4.5)):
        shares = [
            done.attainment((Objective(metric, 95, target),))  # type: ignore[arg-type]
            for target in (least or 1e-9, (least + most) / 2, 100 * most)
        ]
        assert shares == sorted(shares)
        assert shares[0] < 0.5 < shares[-1] == 1.0


def test_a_new_replica_costs_from_its_creation_and_serves_after_its_cold_start() -> None:
    done = run(Planned({100: 1, 1e9: 2}))
    assert done.pod_seconds == pytest.approx(100 + 2 * 500, abs=5)
    ready = [moment.at for moment in done.moments if moment.num_ready == 2]
    assert ready[0] == pytest.approx(130, abs=5)


def test_a_replica_that_goes_finishes_what_it_has_and_is_paid_for_until_then() -> None:
    done = run(Planned({300: 3, 1e9: 1}), rate=8.0, initial_replicas=3)
    assert len(done.answers) == done.num_arrived
    assert 3 * 300 + 300 < done.pod_seconds < 3 * 300 + 300 + 2 * 60


def test_what_a_replica_costs_is_no_matter_of_how_often_its_scaler_looks() -> None:
    """One that looks every three minutes paid for drained replicas until its next look."""
    counts = {180.0: 3, 1e9: 1}
    often, seldom = (run(Planned(counts, tick), rate=8.0, initial_replicas=3) for tick in (2.0, 180.0))
    assert seldom.pod_seconds == pytest.approx(often.pod_seconds, abs=10)


def test_while_no_replica_is_ready_requests_are_refused_and_count_as_missed() -> None:
    done = run(Planned({1e9: 1}), initial_replicas=0)
    assert done.num_refused > 100
    assert done.attainment((TTFT,)) < 1 - done.num_refused / done.num_arrived + 0.01


def test_a_replica_killed_in_its_drain_costs_answers_and_attainment() -> None:
    done = run(Planned({300: 3, 1e9: 1}), rate=8.0, initial_replicas=3, drain_seconds=1.0)
    assert done.num_killed > 0
    assert len(done.answers) == done.num_arrived - done.num_killed
    met = sum(answer.time_to_first_token <= 1.0 for answer in done.answers)
    assert done.attainment((TTFT,)) == met / done.num_arrived < 1


def test_mishaps_happen_when_they_are_to() -> None:
    """A crash at 100 s and a restart at 300 s, each of one replica of two, which is back 30 s later."""
    done = run(Planned({1e9: 2}), initial_replicas=2, crashes_at=(100.0,), restarts_at=(300.0,))
    alone = [moment.at for moment in done.moments if moment.num_ready == 1]
    assert [at for at in alone if at < 200] == [100, 105, 110, 115, 120, 125]
    assert [at for at in alone if at > 200] == [300, 305, 310, 315, 320, 325]
    assert done.num_killed > 0


def test_a_rollout_ends_with_the_next_hardware() -> None:
    slow = replace(HARDWARE, weights_seconds=0.1)
    done = run(Planned({1e9: 2}), initial_replicas=2, rollout_at=100.0, next_hardware=slow)
    before = [answer for answer in done.answers if answer.request.at < 95]
    after = [answer for answer in done.answers if answer.request.at > 300]
    assert max(answer.time_per_output_token or 0 for answer in before) < 0.1
    assert min(answer.time_per_output_token or 1 for answer in after) > 0.09
    assert (done.num_killed, done.num_refused) == (0, 0)


def test_a_cluster_that_is_full_holds_the_fleet_down() -> None:
    done = run(Planned({1e9: 5}), initial_replicas=1, capacity=2)
    assert max(moment.num_ready for moment in done.moments) == 2
    assert done.moments[-1].signals.fleet.current == 5
    assert len(done.moments[-1].signals.fleet.revisions) == 5


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"capacity": 2, "initial_replicas": 3}, r"write 3 \(initial_replicas\) or more"),
        ({"next_hardware": HARDWARE}, "write rollout_at"),
    ],
)
def test_a_setting_that_cannot_be_says_what_to_write(wrong: dict[str, object], advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        replace(SETTING, **wrong)  # type: ignore[arg-type]


def test_turning_back_is_a_reversal_and_going_on_is_none() -> None:
    done = run(Planned({100: 1, 200: 2, 300: 3, 400: 2, 1e9: 3}))
    assert done.count_reversals() == 2
    assert done.count_reversals(within_seconds=50) == 0


def test_a_run_is_reproducible() -> None:
    one, other = run(Static(2)), run(Static(2))
    assert one.answers == other.answers


def test_a_load_follows_its_rate() -> None:
    rate_at = step_rates((2, 10, 1), (100, 100, 100))
    times = [request.at for request in draw_requests(rate_at, 10, 400, LENGTHS, seed=1)]
    for begin, rate in ((0, 2), (100, 10), (200, 1), (300, 1)):
        assert sum(begin <= at < begin + 100 for at in times) == pytest.approx(100 * rate, rel=0.25)
